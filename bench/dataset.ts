// What the benchmark's database holds, and how it is put back between two measurements.
import { createHash } from "node:crypto";
import pg from "pg";

/** Orders come from so many organizations in turn, so that they rarely wait for one another's row. */
export const ORGANIZATIONS = 1000;

const SITES = ["FRA", "AMS", "WAW", "PAR", "MAD"] as const;
/** Six sizes: 4 to 128 cores, with 8 GiB of memory and 240 GiB of storage a core (floor.sql has the same). */
const CORES = [4, 8, 16, 32, 64, 128] as const;
const MEMORY_PER_CORE = 8;
const STORAGE_PER_CORE = 240;

/**
 * Settings of the yardsticks' connections, the ones that reserve_machine() has: every step has one
 * right plan, its index in the index's order, planned once a connection. Left to itself PostgreSQL
 * plans the candidate look-up anew for each order, which takes longer than looking.
 */
export const YARDSTICK_SETTINGS =
  "-c plan_cache_mode=force_generic_plan -c enable_seqscan=off -c enable_bitmapscan=off -c enable_sort=off";

/** Marks what a contender wrote; everything else belongs to the data set. */
export const ORDER_REFERENCE = "bench";

/** An order's requirements as every contender takes them. */
export interface Requirements {
  readonly siteCode?: string;
  readonly minCpuCores: number;
  readonly minMemoryGib: number;
  readonly minStorageGib: number;
}

/** The smallest size anywhere: every machine fits, so everything that is held stands in the way. */
export const ANY_MACHINE: Requirements = requirementsOf(CORES[0]);

/** Ids are computed, so that pgbench can compute them too. */
export function organizationId(index: number): string {
  return `0ac3e000-0000-4000-8000-${String((index % ORGANIZATIONS) + 1).padStart(12, "0")}`;
}

/**
 * What a storefront asks for: a site and one of the sizes. Every pair comes equally often and in a
 * shuffled order that is the same in every run; a slice therefore empties all parts of the shelf alike.
 */
export function ordersShuffled(): Requirements[] {
  const pairs = SITES.flatMap((siteCode) => CORES.map((cores) => ({ siteCode, ...requirementsOf(cores) })));
  const deck: Requirements[] = Array.from({ length: 20 }, () => pairs).flat();
  let state = 20261201;
  for (let last = deck.length - 1; last > 0; last--) {
    // A linear congruential generator (Numerical Recipes); its high bits are good enough to shuffle.
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    const other = (state >>> 16) % (last + 1);
    const held = deck[last] as Requirements;
    deck[last] = deck[other] as Requirements;
    deck[other] = held;
  }
  return deck;
}

function requirementsOf(cores: number): Requirements {
  return {
    minCpuCores: cores,
    minMemoryGib: cores * MEMORY_PER_CORE,
    minStorageGib: cores * STORAGE_PER_CORE,
  };
}

/** A connection of the benchmark's own, whose writes run no trigger: it sets states, it does not sell. */
export async function datasetConnect(url: string): Promise<pg.Client> {
  const client = new pg.Client({ connectionString: url, application_name: "holdfast bench" });
  // Whoever stops the server ends this connection as well; the next query says so.
  client.on("error", () => undefined);
  await client.connect();
  await client.query("SET session_replication_role = replica");
  return client;
}

/** Sites, organizations, the open switch and one STOREFRONT token. */
export async function datasetCreate(client: pg.Client, secret: string): Promise<void> {
  await client.query(
    `INSERT INTO organization (id, slug, name)
     SELECT ('0ac3e000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, 'customer-' || n, 'Customer ' || n
     FROM generate_series(1, $1::integer) n`,
    [ORGANIZATIONS],
  );
  await client.query(
    `INSERT INTO site (id, code, name)
     SELECT ('517e0000-0000-4000-8000-' || lpad(n::text, 12, '0'))::uuid, code, code
     FROM unnest($1::text[]) WITH ORDINALITY AS s (code, n)`,
    [SITES],
  );
  await client.query("UPDATE rollout_switch SET enabled = true WHERE module = 'datacenter'");
  await client.query("INSERT INTO api_token (name, role, secret_sha256) VALUES ('bench', 'storefront', $1)", [
    createHash("sha256").update(secret).digest(),
  ]);
}

/**
 * Adds machines, all free, until there are so many; the same ids in every run. Each comes with two
 * reservations that ended long ago: on a table without history the planner would choose by a size
 * that no shop has.
 */
export async function datasetGrow(client: pg.Client, machines: number): Promise<void> {
  await client.query(
    `INSERT INTO machine (id, asset_tag, site_id, manufacturer, model, cpu_cores, memory_gib, storage_gib,
                          labels, monthly_price_cents, status)
     SELECT md5('machine ' || n)::uuid, 'B-' || lpad(n::text, 7, '0'), s.id, 'Example', 'Server ' || c.cores,
            c.cores, c.cores * $3::integer, c.cores * $4::integer, ARRAY['ecc', 'nvme'], c.cores * 900, 'ready'
     FROM generate_series((SELECT count(*)::integer FROM machine), $1::integer - 1) n
     CROSS JOIN LATERAL (SELECT ($2::integer[])[n / 5 % 6 + 1] AS cores) c
     JOIN site s ON s.id = ('517e0000-0000-4000-8000-' || lpad((n % 5 + 1)::text, 12, '0'))::uuid`,
    [machines, CORES, MEMORY_PER_CORE, STORAGE_PER_CORE],
  );
  await client.query(
    `INSERT INTO reservation (id, organization_id, machine_id, order_reference, idempotency_key, requirements,
                              state, held_at, hold_seconds, expires_at, settled_at, choice)
     SELECT md5('history ' || h || ' ' || m.id)::uuid,
            ('0ac3e000-0000-4000-8000-' || lpad(((m.n * 2 + h) % $1::integer + 1)::text, 12, '0'))::uuid,
            m.id, 'history', 'history-' || h || '-' || m.id, '{"min_cpu_cores": 4}', 'expired',
            t.at, 900, t.at + interval '900 s', t.at + interval '900 s',
            jsonb_build_object('rank', 1, 'skipped', 0, 'lostRaces', 0, 'assetTag', m.asset_tag,
              'siteCode', s.code, 'manufacturer', m.manufacturer, 'model', m.model, 'cpuCores', m.cpu_cores,
              'memoryGib', m.memory_gib, 'storageGib', m.storage_gib, 'labels', m.labels,
              'explanation', repeat('The closest fit that could be had. ', 5))
     FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM machine) m
     JOIN site s ON s.id = m.site_id
     CROSS JOIN generate_series(1, 2) h
     CROSS JOIN LATERAL (SELECT timestamptz '2026-01-01' + (m.n * 2 + h) * interval '1 minute' AS at) t
     WHERE NOT EXISTS (SELECT FROM reservation r WHERE r.machine_id = m.id)`,
    [ORGANIZATIONS],
  );
  await client.query("VACUUM (FREEZE, ANALYZE) machine, reservation, organization, site, api_token");
}

/**
 * Holds every machine but `free`, which stay the last in the order of best fit: whoever looks from
 * the front meets everything that is held first. The holds last for days and belong to all
 * organizations alike.
 */
export async function datasetHoldAllBut(client: pg.Client, free: number): Promise<void> {
  await client.query(
    `WITH chosen AS (
       SELECT id, row_number() OVER (ORDER BY cpu_cores, memory_gib, storage_gib, id) AS n FROM machine
       ORDER BY n LIMIT (SELECT count(*) FROM machine) - $1::integer
     ), held AS (
       UPDATE machine m SET occupancy = 'held' FROM chosen c WHERE m.id = c.id AND m.occupancy = 'free'
       RETURNING m.id, c.n
     )
     INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements,
                              hold_seconds, expires_at, choice)
     SELECT ('0ac3e000-0000-4000-8000-' || lpad((n % $2::integer + 1)::text, 12, '0'))::uuid, id, 'held',
            'held-' || n, '{}', 1000000, clock_timestamp() + interval '1000000 s', '{}'
     FROM held`,
    [free, ORGANIZATIONS],
  );
  await client.query("VACUUM (ANALYZE) machine, reservation");
}

/** Undoes datasetHoldAllBut. */
export async function datasetFreeAll(client: pg.Client): Promise<void> {
  await client.query("DELETE FROM reservation WHERE state = 'held'");
  await client.query("UPDATE machine SET occupancy = 'free' WHERE occupancy <> 'free'");
  await client.query("VACUUM (ANALYZE) machine, reservation");
}

/**
 * Takes back what the contender sold since the last call.
 * @param vacuum whether dead rows go at once, so that no slice pays for the one before. VACUUM also
 *   makes every connection plan its statements again; after a handful of reservations that would be
 *   the larger disturbance.
 * @returns how many reservations there were.
 */
export async function sliceTakeBack(client: pg.Client, vacuum: boolean): Promise<number> {
  const { rows } = await client.query<{ reservations: number; machines: number }>(
    `WITH gone AS (
       DELETE FROM reservation WHERE state = 'held' AND order_reference = $1 RETURNING machine_id
     ), freed AS (
       UPDATE machine m SET occupancy = 'free' FROM gone WHERE m.id = gone.machine_id AND m.occupancy = 'held'
       RETURNING m.id
     )
     SELECT (SELECT count(*)::integer FROM gone) AS reservations, (SELECT count(*)::integer FROM freed) AS machines`,
    [ORDER_REFERENCE],
  );
  const { reservations = 0, machines = 0 } = rows[0] ?? {};
  if (reservations !== machines) {
    throw new Error(`${reservations} reservations stood on ${machines} machines: a contender sold one twice`);
  }
  if (vacuum) await client.query("VACUUM machine, reservation");
  return reservations;
}
