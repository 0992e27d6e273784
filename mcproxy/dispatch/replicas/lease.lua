-- Leases on one limit, for one replica. The sum of the leases on a key that have not expired never exceeds the limit:
-- a replica gets at most what is free. How much it asks for is its own decision (leases.py).
--
-- KEYS  1    hash: member id -> "expiry since seen limit label"; "#born" -> when this hash was made
--       2    sorted set: keys of which a replica wants more than its equal part -> when that note expires
--       3..  hash for a key of the limit: member id -> "expiry held want"
-- ARGV  1 renew | leave   2 member id   3 ms that a lease lasts   4 the limit   5 1: counted in whole numbers
--       6 label of the limit (shown when replicas differ)   7 1: this member has had an answer before, so that all
--       the others know it, whatever this state has lost
--       8 time of the last answer that this member has taken in, or 0
--       then six for each key: its name, ask, least, held, want, 1: give the lease back | 2: note that it is wanted
--
-- A live member without a lease on a key has an equal part of the limit there. Times are Redis' own, in ms.
-- Returns {now, ms since this member joined, 1: all others have taken in an answer since then, so they know of it,
-- ms since the state was made, members, rank of this one, the least limit of all
-- members, id and label of a member with another limit, or "", {keys that are wanted}, then for each key
-- {grant or "default", rank among those with a lease, want, want, ...}}.

local members_key, noted_key = KEYS[1], KEYS[2]
local me, lasts, limit, whole = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5] == '1'
local known = ARGV[7] == '1'

local function number(value)
    return string.format('%.17g', value)
end

-- Others may write to this Redis, too: nil for what is no number, negative, infinite or not a number.
local function amount(text)
    local value = text and tonumber(text)
    return value and value >= 0 and value <= 1e15 and value or nil
end

if ARGV[1] == 'leave' then
    redis.call('HDEL', members_key, me)
    return {}
end

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local expires = now + lasts

-- Who is there. A time later than it can be was written before the clock went back.
local born, since, least, differing = nil, nil, limit, ''
local oldest = now -- of the answers that the others have taken in last
local ids, alive = {}, {}
local rows = redis.call('HGETALL', members_key)
for i = 1, #rows, 2 do
    local id, row = rows[i], rows[i + 1]
    if id == '#born' then
        born = tonumber(row)
    else
        local expiry, joined, seen, theirs, label = string.match(row, '^(%d+) (%d+) (%d+) (%S+) (.*)$')
        expiry, joined, seen, theirs = tonumber(expiry), tonumber(joined), tonumber(seen), amount(theirs)
        if not theirs or theirs == 0 or (expiry <= now and id ~= me) then -- nothing that this script has written, or over
            redis.call('HDEL', members_key, id)
        else
            if id == me then
                since = expiry > now and math.min(joined, now) or nil
            else
                if expiry > expires then
                    redis.call('HSET', members_key, id, string.format('%d %d 0 %s %s', expires, now, number(theirs), label))
                    seen = 0
                end
                oldest = math.min(oldest, seen <= now and seen or 0)
                if label ~= ARGV[6] then differing = string.sub(id .. ' ' .. label, 1, 200) end
                least = math.min(least, theirs)
                alive[id] = true
                ids[#ids + 1] = id
            end
        end
    end
end
if not born or born > now then
    born = now
    redis.call('HSET', members_key, '#born', now)
end
-- The state is new, or lost: who holds leases says so within the time that one lasts, and nothing is free before.
local grace = now - born < lasts
if not since then
    since = known and now - lasts or now
end
redis.call('HSET', members_key, me, string.format('%d %d %s %s %s', expires, since, ARGV[8], ARGV[4], ARGV[6]))
redis.call('PEXPIRE', members_key, 86400000)
ids[#ids + 1] = me
table.sort(ids)
local rank_of = {}
for i, id in ipairs(ids) do rank_of[id] = i - 1 end

local function equal_part(id)
    if not whole then return least / #ids end
    local part = math.floor(least / #ids)
    return rank_of[id] < least - part * #ids and part + 1 or part
end

local leases = {}
for i = 3, #KEYS do
    local at = 9 + (i - 3) * 6
    local name, ask, floor, held, want, how = ARGV[at], tonumber(ARGV[at + 1]), tonumber(ARGV[at + 2]),
        tonumber(ARGV[at + 3]), ARGV[at + 4], ARGV[at + 5]
    local free, lessees, wants, listed = least, {me}, {[me] = want}, {}
    local found = redis.call('HGETALL', KEYS[i])
    for j = 1, #found, 2 do
        local id = found[j]
        local expiry, theirs, wanted = string.match(found[j + 1], '^(%d+) (%S+) (%S+)$')
        theirs = amount(theirs)
        if id ~= me then
            if alive[id] and theirs and amount(wanted) and tonumber(expiry) > now then
                free = free - theirs
                listed[id], wants[id] = true, number(amount(wanted))
                lessees[#lessees + 1] = id
            else
                redis.call('HDEL', KEYS[i], id)
            end
        end
    end
    for _, id in ipairs(ids) do
        if id ~= me and not listed[id] then free = free - equal_part(id) end
    end
    if grace then free = math.min(free, held) end
    local answer
    if how == '1' and free >= equal_part(me) and floor <= equal_part(me) then
        redis.call('HDEL', KEYS[i], me)
        answer = {'default', 0}
    else
        local grant = math.max(0, math.min(ask, free))
        -- What is in flight is there, whatever is granted: nobody else may have it.
        redis.call('HSET', KEYS[i], me, string.format('%d %s %s', expires, number(math.max(grant, floor)), want))
        redis.call('PEXPIRE', KEYS[i], 60000)
        table.sort(lessees)
        answer = {number(grant), 0}
        for rank, id in ipairs(lessees) do
            if id == me then answer[2] = rank - 1 end
            answer[#answer + 1] = wants[id]
        end
    end
    if how == '2' then
        redis.call('ZADD', noted_key, expires + lasts, name)
        redis.call('PEXPIRE', noted_key, 60000)
    end
    leases[#leases + 1] = answer
end

redis.call('ZREMRANGEBYSCORE', noted_key, '-inf', now)
local noted = {}
for _, name in ipairs(redis.call('ZREVRANGEBYSCORE', noted_key, expires + lasts, '-inf', 'LIMIT', 0, 256)) do
    if #name == 16 then noted[#noted + 1] = name end
end
return {now, now - since, oldest > since and 1 or 0, now - born, #ids, rank_of[me], number(least), differing, noted, leases}
