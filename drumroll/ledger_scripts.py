"""The ledger's server-side scripts: each is one atomic write under one incarnation.

Keys: 1 the incarnation (hash: n, seq and digest of the last entry), 2 the journal (stream, ids <seq>-0), 3 the
snapshot (hash: seq, data). Replies: ok with values, or `fenced` or `lost` with a detail. `allow-oom`: see the ledger.
Every path of a write that changes nothing touches the incarnation, so that a WAITAOF on a new connection has
something to wait for.
"""

_HEAD = "#!lua flags=allow-oom\n"

_FENCE = """
local function fence(mine, expected)
  local head = redis.call('HMGET', KEYS[1], 'n', 'seq', 'digest')
  if not head[1] then return {'lost', 'its incarnation is gone'} end
  local stored = tonumber(head[1])
  if stored > tonumber(mine) then return {'fenced', head[1]} end
  if stored < tonumber(mine) then return {'lost', 'it went back to incarnation ' .. head[1]} end
  local seq = tonumber(head[2])
  if seq < expected then return {'lost', 'the journal ends at entry ' .. head[2] .. ', expected ' .. expected} end
  if seq > 0 and redis.call('EXISTS', KEYS[2]) == 0 then return {'lost', 'the journal is gone'} end
  return nil, seq, head[3]
end
"""

OPEN = (
    _HEAD
    + """
local stored = redis.call('HGET', KEYS[1], 'n')
if not stored and redis.call('EXISTS', KEYS[2], KEYS[3]) > 0 then return {'lost', 'its incarnation is gone'} end
local mine = math.max(tonumber(stored or '0'), tonumber(ARGV[1])) + 1
redis.call('HSET', KEYS[1], 'n', mine)
redis.call('HSETNX', KEYS[1], 'seq', 0)
local snapshot = redis.call('HMGET', KEYS[3], 'seq', 'data')
local seq = redis.call('HGET', KEYS[1], 'seq')
return {'ok', mine, seq, snapshot[1] or '0', snapshot[2] or ''}
"""
)
"""ARGV: floor. ok: incarnation, last seq, the snapshot's seq and data."""

REBUILD = (
    _HEAD
    + """
local stored = tonumber(redis.call('HGET', KEYS[1], 'n') or '0')
local mine = math.max(stored, tonumber(ARGV[1])) + 1
redis.call('DEL', KEYS[1], KEYS[2], KEYS[3])
redis.call('HSET', KEYS[1], 'n', mine, 'seq', ARGV[2], 'digest', '')
redis.call('HSET', KEYS[3], 'seq', ARGV[2], 'data', ARGV[3])
if tonumber(ARGV[2]) > 0 then
  redis.call('XADD', KEYS[2], ARGV[2] .. '-0', 'd', '')
  redis.call('XTRIM', KEYS[2], 'MAXLEN', '=', 0)
end
return {'ok', mine}
"""
)
"""ARGV: floor, seq and data of the snapshot. ok: incarnation."""

APPEND = (
    _HEAD
    + _FENCE
    + """
local mine, seq, data, digest = ARGV[1], tonumber(ARGV[2]), ARGV[3], ARGV[4]
local refusal, last, last_digest = fence(mine, seq - 1)
if refusal then return refusal end
if last >= seq then
  if last > seq or last_digest ~= digest then return {'fenced', 'another writer of the same number'} end
  redis.call('HSET', KEYS[1], 'n', mine)
  return {'ok'}
end
local added = redis.pcall('XADD', KEYS[2], ARGV[2] .. '-0', 'd', data, 's', digest, 'i', mine)
if type(added) == 'table' then return {'lost', 'the journal does not end at entry ' .. last .. ': ' .. added.err} end
redis.call('HSET', KEYS[1], 'seq', ARGV[2], 'digest', digest)
return {'ok'}
"""
)
"""ARGV: incarnation, seq, data, digest."""

SNAPSHOT = (
    _HEAD
    + _FENCE
    + """
local refusal = fence(ARGV[1], tonumber(ARGV[2]))
if refusal then return refusal end
redis.call('HSET', KEYS[1], 'n', ARGV[1])
redis.call('HSET', KEYS[3], 'seq', ARGV[3], 'data', ARGV[4])
redis.call('XTRIM', KEYS[2], 'MINID', '=', (tonumber(ARGV[3]) + 1) .. '-0')
return {'ok'}
"""
)
"""ARGV: incarnation, last seq, the snapshot's seq and data."""

CHECK = (
    _HEAD.replace("allow-oom", "allow-oom,no-writes") + _FENCE + "return fence(ARGV[1], tonumber(ARGV[2])) or {'ok'}"
)
"""ARGV: incarnation, last seq."""
