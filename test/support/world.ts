import { randomUUID } from "node:crypto";
import type pg from "pg";
import { globalIdEncode } from "../../src/graphql/globalId.ts";

/** A machine as a test asks for it; everything else has a plain value. */
export interface MachineWish {
  assetTag?: string;
  site?: string;
  manufacturer?: string;
  model?: string;
  cpuCores?: number;
  memoryGib?: number;
  storageGib?: number;
  labels?: string[];
  status?: string;
  heightUnits?: number;
  depth?: "half" | "full";
  powerWatts?: number | null;
}

let counter = 0;

/** A text that no other call of this process returns. */
export function unique(prefix: string): string {
  counter += 1;
  return `${prefix}-${process.pid}-${counter}`;
}

/** Opens or closes a module for everybody. */
export async function switchSet(
  pool: pg.Pool,
  module: "datacenter" | "publishing",
  enabled: boolean,
): Promise<void> {
  await pool.query("UPDATE rollout_switch SET enabled = $2 WHERE module = $1", [module, enabled]);
}

/** Inserts organizations and returns their uuids. */
export async function organizations(pool: pg.Pool, count: number): Promise<string[]> {
  const slugs = Array.from({ length: count }, () => unique("org"));
  const { rows } = await pool.query<{ id: string }>(
    "INSERT INTO organization (slug, name) SELECT s, s FROM unnest($1::text[]) s RETURNING id",
    [slugs],
  );
  return rows.map((row) => row.id);
}

/** Inserts one machine (ready unless asked otherwise), with its site if it is missing. */
export async function machine(pool: pg.Pool, wish: MachineWish = {}): Promise<string> {
  const site = wish.site ?? "FRA";
  await pool.query("INSERT INTO site (code, name) VALUES ($1, $1) ON CONFLICT DO NOTHING", [site]);
  const { rows } = await pool.query<{ id: string }>(
    `INSERT INTO machine (asset_tag, site_id, manufacturer, model, cpu_cores, memory_gib, storage_gib, labels, status,
                          height_units, depth, power_watts)
     SELECT $1, id, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12 FROM site WHERE code = $2 RETURNING id`,
    [
      wish.assetTag ?? unique("M"),
      site,
      wish.manufacturer ?? "Dell",
      wish.model ?? "R450",
      wish.cpuCores ?? 8,
      wish.memoryGib ?? 64,
      wish.storageGib ?? 1000,
      wish.labels ?? ["nvme"],
      wish.status ?? "ready",
      wish.heightUnits ?? 1,
      wish.depth ?? "full",
      wish.powerWatts ?? null,
    ],
  );
  return (rows[0] as { id: string }).id;
}

/** Inserts one rack of 42 units, unless asked otherwise, with its site if it is missing. */
export async function rack(
  pool: pg.Pool,
  wish: {
    site?: string;
    name?: string;
    heightUnits?: number;
    numbering?: "bottom_up" | "top_down";
    startingUnit?: number;
    powerBudgetWatts?: number | null;
  } = {},
): Promise<string> {
  const site = wish.site ?? "FRA";
  await pool.query("INSERT INTO site (code, name) VALUES ($1, $1) ON CONFLICT DO NOTHING", [site]);
  const { rows } = await pool.query<{ id: string }>(
    `INSERT INTO rack (site_id, name, height_units, numbering, starting_unit, power_budget_watts)
     SELECT id, $2, $3, $4, $5, $6 FROM site WHERE code = $1 RETURNING id`,
    [
      site,
      wish.name ?? unique("rack"),
      wish.heightUnits ?? 42,
      wish.numbering ?? "bottom_up",
      wish.startingUnit ?? 1,
      wish.powerBudgetWatts ?? null,
    ],
  );
  return (rows[0] as { id: string }).id;
}

/** Inserts `count` machines of equal fit. */
export async function machines(pool: pg.Pool, count: number, wish: MachineWish = {}): Promise<string[]> {
  const ids: string[] = [];
  for (let index = 0; index < count; index++) ids.push(await machine(pool, wish));
  return ids;
}

/** A hold as a test asks for it. */
export interface HoldWish {
  organization?: string;
  key?: string;
  /** Seconds from now until the deadline; negative: overdue since then. */
  endsIn?: number;
}

/** Inserts a hold by hand, past every check of the application, and returns its uuid. */
export async function hold(
  pool: pg.Pool | pg.ClientBase,
  machineId: string,
  wish: HoldWish = {},
): Promise<string> {
  const organization = wish.organization ?? (await organizations(pool as pg.Pool, 1))[0];
  const { rows } = await pool.query<{ id: string }>(
    `INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, held_at, hold_seconds, expires_at, choice)
     SELECT $1, m.id, 'by hand', $3, '{}', least(now(), now() + make_interval(secs => $4) - interval '900 seconds'), 900,
            now() + make_interval(secs => $4),
            jsonb_build_object('rank', 1, 'skipped', 0, 'lostRaces', 0, 'assetTag', m.asset_tag, 'siteCode', 'FRA',
              'manufacturer', m.manufacturer, 'model', m.model, 'cpuCores', m.cpu_cores, 'memoryGib', m.memory_gib,
              'storageGib', m.storage_gib, 'labels', m.labels, 'explanation', 'by hand')
     FROM machine m WHERE m.id = $2 RETURNING id`,
    [organization, machineId, wish.key ?? unique("key"), wish.endsIn ?? 900],
  );
  return (rows[0] as { id: string }).id;
}

/** Takes every machine, hold and binding away, so that the next round starts anew. */
export async function clear(pool: pg.Pool): Promise<void> {
  await pool.query("TRUNCATE machine, reservation, service_binding, rack_reservation, rack");
}

/** Gives every machine back, as if nothing had been reserved. */
export async function restock(pool: pg.Pool): Promise<void> {
  await pool.query(`DO $$ BEGIN
    SET LOCAL session_replication_role = replica;
    TRUNCATE reservation, service_binding;
    UPDATE machine SET occupancy = 'free', status = 'ready';
  END $$`);
}

/** Makes a reservation vanish, as no path of the product can: past the triggers that keep it. */
export async function vanish(pool: pg.Pool, reservationId: string): Promise<void> {
  const client = await pool.connect();
  try {
    await client.query("BEGIN");
    await client.query("SET LOCAL session_replication_role = replica");
    await client.query(
      `WITH gone AS (DELETE FROM reservation WHERE id = $1 RETURNING machine_id)
       UPDATE machine SET occupancy = 'free' WHERE id IN (SELECT machine_id FROM gone)`,
      [reservationId],
    );
    await client.query("COMMIT");
  } finally {
    client.release();
  }
}

/** The variables of reserveMachine. */
export function order(organizationId: string, requirements: object = {}, key: string = randomUUID()) {
  return {
    input: {
      organizationId: globalIdEncode("Organization", organizationId),
      orderReference: "order-1",
      idempotencyKey: key,
      requirements,
    },
  };
}

/**
 * What must be true of every database at every moment, read in SQL; one line a breach.
 * A machine has at most one hold and at most one binding, never both; its occupancy is what those
 * rows say; a converted reservation has exactly one binding; nothing outlives twice its hold time.
 */
export async function breaches(pool: pg.Pool): Promise<string[]> {
  const { rows } = await pool.query<{ breach: string }>(`
    SELECT 'two holds on ' || machine_id AS breach FROM reservation WHERE state = 'held' GROUP BY machine_id HAVING count(*) > 1
    UNION ALL
    SELECT 'two bindings on ' || machine_id FROM service_binding WHERE released_at IS NULL GROUP BY machine_id HAVING count(*) > 1
    UNION ALL
    SELECT 'held and bound: ' || r.machine_id FROM reservation r
    JOIN service_binding b ON b.machine_id = r.machine_id AND b.released_at IS NULL WHERE r.state = 'held'
    UNION ALL
    SELECT 'occupancy of ' || m.id || ' is ' || m.occupancy FROM machine m
    WHERE m.occupancy <> CASE
      WHEN EXISTS (SELECT FROM service_binding b WHERE b.machine_id = m.id AND b.released_at IS NULL) THEN 'bound'
      WHEN EXISTS (SELECT FROM reservation r WHERE r.machine_id = m.id AND r.state = 'held') THEN 'held'
      ELSE 'free' END
    UNION ALL
    SELECT 'converted without its binding: ' || r.id FROM reservation r
    WHERE r.state = 'converted' AND (SELECT count(*) FROM service_binding b WHERE b.reservation_id = r.id) <> 1
    UNION ALL
    SELECT 'key used twice: ' || idempotency_key FROM reservation GROUP BY organization_id, idempotency_key HAVING count(*) > 1
    UNION ALL
    SELECT 'lives too long: ' || id FROM reservation WHERE expires_at > held_at + 2 * make_interval(secs => hold_seconds)`);
  return rows.map((row) => row.breach);
}
