"""The layout of the memory in which the processes of a daemon count. All offsets are in words of 8 bytes.

    header     what the memory is, and the process id of each column
    mutexes    one of the directory, one of each region of both tables
    regions    the data of a region besides its slots: the undo log, the blocks that were used
    identities which limit has which record of the directory
    directory  a record for each limit: its parameters, and the slot that is shared by keys without room
    buckets    slots of token buckets
    counts     slots of requests in flight
    shares     the parameters of each bucket with a share of its own, of limits over replicas

A slot belongs to one key of one limit. The slots are divided into regions; a key may only be in a window of one region,
whose mutex covers all that is read and written of it. A word is stored at once (an aligned store of 8 bytes), so a
process that is killed leaves each word old or new, and nothing between.

The memory is sparse: unused slots take no pages.
"""

from __future__ import annotations

from typing import Final

#: The value of the first word. It changes with the layout: memory of another version of the program is not touched.
MAGIC = 0x6D6370726F780003
WORD = 8
COLUMNS = 64  # processes: workers from 0 on, and the keeper
KEEPER_COLUMN = COLUMNS - 1
ALL_ONES: Final = (1 << 64) - 1

# -- header ----------------------------------------------------------------------------------------------------
H_MAGIC, H_MULTIPLIER, H_CREATOR = 0, 1, 2
H_PIDS = 8  # one word for each column; 0: no process
HEADER_WORDS = 128

# -- mutexes ---------------------------------------------------------------------------------------------------
#: Bytes for one: a pthread_mutex_t has 40 (x86_64; musl) or 48 (aarch64), and two in one cache line would disturb each
#: other.
MUTEX_BYTES = 64
REGIONS = 64  # of each table
DIRECTORY_MUTEX = 0
BUCKETS_MUTEX = 1
COUNTS_MUTEX = BUCKETS_MUTEX + REGIONS
MUTEXES = COUNTS_MUTEX + REGIONS
MUTEXES_AT = HEADER_WORDS

# -- regions ---------------------------------------------------------------------------------------------------
R_USED = 0  # a bit for each of 64 blocks of slots that was used since the last `demands` (limits over replicas only)
R_GIVEN = 1  # a bit for each block with a slot that a key has ever had: the others must not be touched
R_UNDO = 2  # the number of words in the undo log, then pairs: where, and the old value
UNDO_MAX = 6
BLOCKS = 64
REGION_WORDS = 16
REGIONS_AT = MUTEXES_AT + MUTEXES * MUTEX_BYTES // WORD

# -- parameters of a bucket (floats) ---------------------------------------------------------------------------
#: Levels are counted in tokens: at the time P_TIME the level was P_LEVEL, and it rises by P_RATE a second. A bucket's
#: own level (B_LEVEL) is that at which it has been, or would have been, empty: it holds the difference, at most
#: P_BURST.
P_LEVEL: Final = 0
P_TIME: Final = 1
P_RATE: Final = 2
P_BURST: Final = 3
P_FLOOR: Final = 4  # lower bound of all levels: a full bucket does not gain from a larger burst
P_NEEDED: Final = 5  # tokens that count as a whole one
PARAMETER_WORDS = 6

# -- directory -------------------------------------------------------------------------------------------------
# The identities of the limits lie by themselves, so that looking for one does not touch the records: hash of name, kind
# and `per`; 0: the record was never used; ALL_ONES: it is being made.
D_LEASES_END: Final = 0  # the time (float) at which shares of keys end; only limits over replicas have shares
D_OWNER: Final = 1  # the S_OWNER of the limit's slots: the number of the record, and of its use
D_USERS = 2  # a bit for each column that counts by it
D_KEPT = 3  # 1: kept without users, for the shares of replicas
D_SHARED = 4  # 1: over replicas
D_PARAMETERS: Final = 5  # where the set in force begins
D_MAXIMUM: Final = 6
D_KIND = 7  # 1: token buckets, 2: counts
OF_BUCKETS, OF_COUNTS = 1, 2
D_SETS = 8  # four sets: one in force, the others may still be read by processes that began before a change
D_SET_WORDS = 8
D_SET_COUNT = 4
D_OVERFLOW = D_SETS + D_SET_WORDS * D_SET_COUNT  # a slot, for keys without room
RECORDS = 4096

# -- slots -----------------------------------------------------------------------------------------------------
S_TAG = 0  # hash of limit and key, mixed with the owner
S_OWNER = 1
S_TAKEN, S_REFUSED = 2, 3  # since the last `demands`
FREE, DROPPED = 0, 1  # tags: never used (a search ends here), and no longer used (it continues)
FIRST_TAG = 2
WINDOW = 32  # slots of its region in which a key may be

B_LEVEL: Final = 4
B_PARAMETERS: Final = 5  # 0: those of the limit; else the place of the key's own
BUCKET_WORDS = 6
SHARE_WORDS = 2 * PARAMETER_WORDS  # of a key with a share of its own: two sets, one in force
BUCKETS = 1 << 18  # twice what may be used before windows fill up: 131,072 keys

C_TOTAL: Final = 4
C_OWN_MAXIMUM: Final = 5  # ALL_ONES: that of the limit
C_WAITING: Final = 6  # a bit for each column with a queue
C_RESERVED: Final = 7  # a bit for each column with a given place that it has not taken yet; it counts for that column
C_LATE: Final = 8  # the bits of C_RESERVED that were set before C_LATE_AT, and have not been cleared since
C_LATE_AT: Final = 9  # a time (float)
C_LAST: Final = 10  # the column that was given a place last
C_COLUMNS: Final = 11
COUNT_WORDS = C_COLUMNS + COLUMNS  # in the memory of one process with one column: `Memory.count_words`
COUNTS = 1 << 16
NO_MAXIMUM = 1 << 62

RECORD_WORDS = D_OVERFLOW + COUNT_WORDS
IDENTITIES_AT = REGIONS_AT + 2 * REGIONS * REGION_WORDS
DIRECTORY_AT = IDENTITIES_AT + RECORDS
BUCKETS_AT = DIRECTORY_AT + RECORDS * RECORD_WORDS
COUNTS_AT = BUCKETS_AT + BUCKETS * BUCKET_WORDS
SHARES_AT = COUNTS_AT + COUNTS * COUNT_WORDS
WORDS = SHARES_AT + BUCKETS * SHARE_WORDS


def share_of(base: int) -> int:
    """Return the place of the two sets of parameters of a bucket's slot."""
    if base < BUCKETS_AT:  # a record's slot, which has room behind it
        return base + BUCKET_WORDS
    return SHARES_AT + (base - BUCKETS_AT) // BUCKET_WORDS * SHARE_WORDS
