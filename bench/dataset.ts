import type pg from "pg";

/** Sites and sizes as a mid-sized host has them: many machines alike, and an order for each size. */
const SITES = ["FRA", "AMS", "WAW"];
const SIZES = [
  [4, 32],
  [6, 64],
  [8, 64],
  [12, 128],
  [16, 128],
  [24, 256],
  [32, 256],
  [64, 512],
] as const;

/** Organizations that the orders come from. */
export const ORGANIZATIONS = 1000;

/** An order of the load: what a storefront asks for. */
export interface Order {
  readonly siteCode: string;
  readonly minCpuCores: number;
  readonly minMemoryGib: number;
}

/** Every order that the load sends, in turn; each fits one machine in 24. */
export const ORDERS: readonly Order[] = SITES.flatMap((siteCode) =>
  SIZES.map(([minCpuCores, minMemoryGib]) => ({ siteCode, minCpuCores, minMemoryGib })),
);

/** Fills an empty, migrated database: `machines` ready machines, 1,000 organizations, the switch open. */
export async function datasetFill(pool: pg.Pool, machines: number): Promise<void> {
  await pool.query("UPDATE rollout_switch SET enabled = true");
  await pool.query(
    `INSERT INTO organization (slug, name) SELECT 'bench-' || n, 'Bench ' || n FROM generate_series(1, $1::int) n`,
    [ORGANIZATIONS],
  );
  // pgbench draws numbers, not uuids.
  await pool.query("CREATE TABLE bench_organization (n integer PRIMARY KEY, id uuid NOT NULL)");
  await pool.query(
    "INSERT INTO bench_organization SELECT substr(slug, 7)::integer, id FROM organization WHERE slug LIKE 'bench-%'",
  );
  await pool.query("INSERT INTO site (code, name) SELECT c, c FROM unnest($1::text[]) c", [SITES]);
  await pool.query(
    `INSERT INTO machine (asset_tag, site_id, manufacturer, model, cpu_cores, memory_gib, storage_gib, labels, status)
     SELECT 'B-' || n, s.id, 'Maker', 'Model ' || z.cores, z.cores, z.memory, 1000, '{nvme}', 'ready'
     FROM generate_series(1, $1::int) n
     JOIN unnest($2::int[], $3::int[]) WITH ORDINALITY z (cores, memory, at) ON z.at = (n / 3) % cardinality($2::int[]) + 1
     JOIN site s ON s.code = ($4::text[])[n % 3 + 1]`,
    [machines, SIZES.map(([cores]) => cores), SIZES.map(([, memory]) => memory), SITES],
  );
  await pool.query("VACUUM ANALYZE");
}

/** Gives every machine back, as if nothing had been reserved. Not part of any measurement. */
export async function restock(pool: pg.Pool): Promise<void> {
  await pool.query(`DO $$ BEGIN
    SET LOCAL session_replication_role = replica;
    TRUNCATE reservation, service_binding;
    UPDATE machine SET occupancy = 'free', status = 'ready' WHERE occupancy <> 'free' OR status <> 'ready';
  END $$`);
  await pool.query("VACUUM (ANALYZE) machine");
}

/** Holds all machines but the last one in a thousand in the order of best fit. */
export async function sellOut(pool: pg.Pool): Promise<void> {
  await pool.query(`DO $$ BEGIN
    SET LOCAL session_replication_role = replica;
    WITH taken AS (
      UPDATE machine SET occupancy = 'held' WHERE id IN (
        SELECT id FROM machine ORDER BY cpu_cores, memory_gib, storage_gib, id
        LIMIT (SELECT floor(count(*) * 0.999) FROM machine))
      RETURNING id
    )
    INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, hold_seconds, held_at, expires_at, choice)
    SELECT (SELECT id FROM organization LIMIT 1), id, 'sold', 'sold-' || id, '{}', 86400, now(), now() + interval '1 day', '{}' FROM taken;
  END $$`);
  await pool.query("VACUUM ANALYZE");
}
