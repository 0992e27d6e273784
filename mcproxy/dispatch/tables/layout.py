"""The layout of the shared memory in which the processes of a daemon count. All offsets are in words of 8 bytes.

    header     the format's version, and the process id of each column
    mutexes    one for the directory, one for each region of both tables
    regions    the data of a region in addition to its slots: the undo log, the used blocks
    identities the limit of each record of the directory
    directory  a record for each limit: its parameters, and the slot that keys without room share
    buckets    slots of token buckets
    counts     slots of requests in flight
    shares     the parameters of each bucket with its own share, for limits over replicas

A slot belongs to one key of one limit. The slots are divided into regions. A key can only be in a window of one region,
whose mutex covers all reads and writes of the key. A word is stored atomically (an aligned store of 8 bytes), so a
killed process leaves each word with its old or its new value.

The memory is sparse: unused slots take no pages.
"""

from __future__ import annotations

from typing import Final

#: The value of the first word. It changes with the layout, so that memory of other program versions is not used.
MAGIC = 0x6D6370726F780003
WORD = 8
COLUMNS = 64  # maximum of processes: workers from 0 on, and the keeper
KEEPER_COLUMN = COLUMNS - 1
ALL_ONES: Final = (1 << 64) - 1

# -- header ----------------------------------------------------------------------------------------------------
H_MAGIC, H_MULTIPLIER, H_CREATOR = 0, 1, 2
H_PIDS = 8  # one word for each column; 0: no process
HEADER_WORDS = 128

# -- mutexes ---------------------------------------------------------------------------------------------------
#: Bytes for a mutex: a pthread_mutex_t has 40 (x86_64; musl) or 48 (aarch64), and two mutexes in one cache line would
#: slow each other down.
MUTEX_BYTES = 64
REGIONS = 64  # number of regions of each table
DIRECTORY_MUTEX = 0
BUCKETS_MUTEX = 1
COUNTS_MUTEX = BUCKETS_MUTEX + REGIONS
MUTEXES = COUNTS_MUTEX + REGIONS
MUTEXES_AT = HEADER_WORDS

# -- regions ---------------------------------------------------------------------------------------------------
R_USED = 0  # a bit for each of 64 blocks of slots used since the last `demands` (only for limits over replicas)
R_GIVEN = 1  # a bit for each block with a slot that a key has ever had; other blocks must stay untouched (sparse)
R_UNDO = 2  # the number of words in the undo log, then pairs of offset and old value
UNDO_MAX = 6
BLOCKS = 64
REGION_WORDS = 16
REGIONS_AT = MUTEXES_AT + MUTEXES * MUTEX_BYTES // WORD

# -- parameters of a bucket (floats) ---------------------------------------------------------------------------
#: Levels are counted in tokens: at the time P_TIME the level was P_LEVEL, and it rises by P_RATE a second. A bucket's
#: own level (B_LEVEL) is the level at which the bucket was, or would have been, empty. The bucket contains the
#: difference, at most P_BURST.
P_LEVEL: Final = 0
P_TIME: Final = 1
P_RATE: Final = 2
P_BURST: Final = 3
P_FLOOR: Final = 4  # lower bound of all levels, so that a full bucket gains no tokens from a larger burst
P_NEEDED: Final = 5  # tokens that count as a whole one
PARAMETER_WORDS = 6

# -- directory -------------------------------------------------------------------------------------------------
# The identities of the limits are separate, so that a search does not touch the records. An identity is the hash of
# name, kind and `per`; 0: the record was never used; ALL_ONES: it is being created.
D_LEASES_END: Final = 0  # the time (float) at which shares of keys end; only limits over replicas have shares
D_OWNER: Final = 1  # the S_OWNER of the limit's slots: the number of the record, and of its use
D_USERS = 2  # a bit for each column that uses the record
D_KEPT = 3  # 1: kept without users, for the shares of replicas
D_SHARED = 4  # 1: over replicas
D_PARAMETERS: Final = 5  # offset of the set in force
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
S_TAKEN, S_REFUSED = 2, 3  # taken and refused requests since the last `demands`
FREE, DROPPED = 0, 1  # tags of slots never used (a search ends there) and no longer used (a search continues)
FIRST_TAG = 2
WINDOW = 32  # number of slots in which a key can be

B_LEVEL: Final = 4
B_PARAMETERS: Final = 5  # offset of the key's own parameters; 0: those of the limit apply
BUCKET_WORDS = 6
SHARE_WORDS = 2 * PARAMETER_WORDS  # for a key with its own share: two sets, one of them in force
BUCKETS = 1 << 18  # twice the number of keys (131,072) above which windows become full

C_TOTAL: Final = 4
C_OWN_MAXIMUM: Final = 5  # the key's own maximum; ALL_ONES: that of the limit applies
C_WAITING: Final = 6  # a bit for each column with a queue
C_RESERVED: Final = 7  # a bit for each column that was given a place and has not taken it; it counts for the column
C_LATE: Final = 8  # the bits of C_RESERVED that were set before C_LATE_AT, and have not been cleared since
C_LATE_AT: Final = 9  # a time (float)
C_LAST: Final = 10  # the last column that was given a place
C_COLUMNS: Final = 11
COUNT_WORDS = C_COLUMNS + COLUMNS  # private memory has only one column: see `Memory.count_words`
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
    """Return the offset of the two sets of parameters of a bucket's slot."""
    if base < BUCKETS_AT:  # a record's slot, which has room for the sets after it
        return base + BUCKET_WORDS
    return SHARES_AT + (base - BUCKETS_AT) // BUCKET_WORDS * SHARE_WORDS
