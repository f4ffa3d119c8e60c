-- The floor: the same reservation in pgbench, prepared, one statement a step, with no program around
-- it. What is left is PostgreSQL, the rules in it, and one round trip a statement.
\set n random(1, 1000)
\set k random(1, 1000000000000)
\set size random(0, 7)
\set site random(0, 2)
SELECT role FROM api_token WHERE secret_sha256 = sha256('bench-token-0123456789'::bytea) AND revoked_at IS NULL AND (expires_at IS NULL OR expires_at > statement_timestamp());
BEGIN;
SELECT o.id AS org FROM bench_organization b JOIN organization o USING (id) WHERE b.n = :n FOR NO KEY UPDATE OF o \gset
SELECT (SELECT count(*) FROM reservation WHERE organization_id = :org AND idempotency_key = 'k' || :k::text) AS used, module_enabled(:org, 'datacenter') AS open, (SELECT count(*) FROM reservation WHERE organization_id = :org AND state = 'held' AND expires_at > clock_timestamp()) AS held, (SELECT id FROM site WHERE code = (ARRAY['FRA', 'AMS', 'WAW'])[:site::int + 1]) AS site_id \gset
SELECT cpu_cores AS cores, memory_gib AS memory, storage_gib AS storage FROM machine WHERE status = 'ready' AND occupancy = 'free' AND site_id = :site_id AND cpu_cores >= (ARRAY[4, 6, 8, 12, 16, 24, 32, 64])[:size::int + 1] ORDER BY cpu_cores, memory_gib, storage_gib, id LIMIT 1 \gset
SAVEPOINT attempt;
SELECT id AS machine FROM machine WHERE status = 'ready' AND occupancy = 'free' AND site_id = :site_id AND cpu_cores = :cores AND memory_gib = :memory AND storage_gib = :storage ORDER BY cpu_cores, memory_gib, storage_gib, id < md5(:k::text)::uuid, id LIMIT 1 FOR UPDATE SKIP LOCKED \gset
INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, held_at, hold_seconds, expires_at, choice) SELECT :org, m.id, 'order', 'k' || :k::text, '{}', now(), 900, now() + interval '900 seconds', jsonb_build_object('assetTag', m.asset_tag) FROM machine m WHERE m.id = :machine RETURNING id;
RELEASE SAVEPOINT attempt;
COMMIT;
