-- The floor: what the database and one round trip a statement cost, with no service at all. The same
-- statements as bench/rest.ts, in the same order. pgbench is given: run, token, clients, and n = 0.
-- An order is the n-th of its client; organizations, sites and sizes come in turn, the latter shuffled.
\set n :n + 1
\set i :n * :clients + :client_id
\set organization :i % 1000 + 1
\set pair permute(:i % 600, 600, 42) % 30
\set site :pair / 6 + 1
\set cores 4 << (:pair % 6)
\set memory :cores * 8
\set storage :cores * 240
SELECT role FROM api_token WHERE secret_sha256 = sha256(convert_to(:token, 'UTF8')) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > statement_timestamp()) \gset viewer_
BEGIN;
SELECT id AS organization_id, coalesce(hold_limit, 100000) AS hold_limit FROM organization WHERE id = ('0ac3e000-0000-4000-8000-' || lpad(:organization::text, 12, '0'))::uuid FOR NO KEY UPDATE \gset
SELECT (SELECT id FROM reservation WHERE organization_id = :organization_id::uuid AND idempotency_key = :run::text || '-' || :client_id::text || '-' || :n::text) IS NULL AS is_new,
       coalesce((SELECT enabled FROM feature_override WHERE organization_id = :organization_id::uuid AND module = 'datacenter'),
                (SELECT enabled FROM rollout_switch WHERE module = 'datacenter')) AS is_enabled,
       (SELECT count(*) FROM reservation WHERE organization_id = :organization_id::uuid AND settled_at IS NULL AND expires_at > clock_timestamp()) AS held,
       (SELECT id FROM site WHERE id = ('517e0000-0000-4000-8000-' || lpad(:site::text, 12, '0'))::uuid) AS site_id \gset
SAVEPOINT attempt;
WITH best AS (
  SELECT cpu_cores, memory_gib, storage_gib FROM machine
  WHERE status = 'ready' AND occupancy = 'free' AND site_id = :site_id::uuid
    AND cpu_cores >= :cores::integer AND memory_gib >= :memory::integer AND storage_gib >= :storage::integer AND labels @> '{}'::text[]
  ORDER BY cpu_cores, memory_gib, storage_gib, id LIMIT 1
)
SELECT c.id AS machine_id, c.asset_tag, c.manufacturer, c.model, c.cpu_cores, c.memory_gib, c.storage_gib, c.labels
FROM best CROSS JOIN LATERAL (
  SELECT * FROM (SELECT m.* FROM machine m
   WHERE m.status = 'ready' AND m.occupancy = 'free' AND m.site_id = :site_id::uuid AND m.cpu_cores = best.cpu_cores
     AND m.memory_gib = best.memory_gib AND m.storage_gib = best.storage_gib AND m.labels @> '{}'::text[]
     AND m.id > md5(:run::text || '-' || :client_id::text || '-' || :n::text)::uuid
   ORDER BY m.id LIMIT 1 FOR UPDATE SKIP LOCKED) in_group
  UNION ALL
  SELECT * FROM (SELECT m.* FROM machine m
   WHERE m.status = 'ready' AND m.occupancy = 'free' AND m.site_id = :site_id::uuid
     AND (m.cpu_cores, m.memory_gib, m.storage_gib) >= (best.cpu_cores, best.memory_gib, best.storage_gib)
     AND m.memory_gib >= :memory::integer AND m.storage_gib >= :storage::integer AND m.labels @> '{}'::text[]
   ORDER BY m.cpu_cores, m.memory_gib, m.storage_gib, m.id LIMIT 1 FOR UPDATE SKIP LOCKED) after_it
) c LIMIT 1 \gset
INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, held_at, hold_seconds, expires_at, choice)
SELECT :organization_id::uuid, :machine_id::uuid, 'bench', :run::text || '-' || :client_id::text || '-' || :n::text,
       jsonb_build_object('min_cpu_cores', :cores::integer, 'min_memory_gib', :memory::integer, 'min_storage_gib', :storage::integer),
       now, 900, now + make_interval(secs => 900),
       jsonb_build_object('rank', 1, 'skipped', 0, 'lostRaces', 0, 'assetTag', :asset_tag::text, 'siteCode', :site::text, 'manufacturer', :manufacturer::text,
         'model', :model::text, 'cpuCores', :cpu_cores::integer, 'memoryGib', :memory_gib::integer, 'storageGib', :storage_gib::integer, 'labels', :labels::text[],
         'explanation', format('The closest fit that could be had: %s %s at %s with %s cores (%s asked), %s GiB of memory (%s asked) and %s GiB of storage (%s asked).',
           :manufacturer::text, :model::text, :site::text, :cpu_cores::text, :cores::text, :memory_gib::text, :memory::text, :storage_gib::text, :storage::text))
FROM clock_timestamp() AS now
RETURNING id AS reservation_id, expires_at \gset
RELEASE SAVEPOINT attempt;
COMMIT;
