import type pg from "pg";
import { afterEach, beforeEach, expect, test } from "vitest";
import { RESERVATION_STATE_TABLE, RESERVATION_STATES } from "../../src/reservations/states.ts";
import { waitUntilBlocked } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import { breaches, clear, hold, machine, organizations, switchSet, unique } from "../support/world.ts";

// The database alone, in raw SQL and in sessions that nobody coordinates.

const database = useTestDatabase();
let sessions: pg.Client[] = [];

beforeEach(() => clear(database().pool));
afterEach(async () => {
  for (const session of sessions) await session.end();
  sessions = [];
});

async function session(): Promise<pg.Client & { pid: number }> {
  const client = await database().connect();
  sessions.push(client);
  const { rows } = await client.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
  return Object.assign(client, { pid: (rows[0] as { pid: number }).pid });
}

/** The constraint that a statement violates; null when it goes through. */
async function refusedBy(statement: Promise<unknown>): Promise<string | null> {
  try {
    await statement;
    return null;
  } catch (error) {
    return (error as pg.DatabaseError).constraint ?? `no constraint: ${(error as Error).message}`;
  }
}

async function convert(client: pg.ClientBase | pg.Pool, reservationId: string): Promise<void> {
  await client.query(
    "UPDATE reservation SET state = 'converted', settled_at = clock_timestamp() WHERE id = $1",
    [reservationId],
  );
  await bind(client, reservationId);
}

async function bind(client: pg.ClientBase | pg.Pool, reservationId: string): Promise<string> {
  const { rows } = await client.query<{ id: string }>(
    `INSERT INTO service_binding (reservation_id, organization_id, machine_id, service_reference)
     SELECT id, organization_id, machine_id, 'svc' FROM reservation WHERE id = $1 RETURNING id`,
    [reservationId],
  );
  return (rows[0] as { id: string }).id;
}

async function bound(): Promise<{ machineId: string; reservationId: string; bindingId: string }> {
  const machineId = await machine(database().pool);
  const reservationId = await hold(database().pool, machineId);
  const client = await session();
  await client.query("BEGIN");
  await convert(client, reservationId);
  await client.query("COMMIT");
  const { rows } = await client.query<{ id: string }>(
    "SELECT id FROM service_binding WHERE reservation_id = $1",
    [reservationId],
  );
  return { machineId, reservationId, bindingId: (rows[0] as { id: string }).id };
}

test("reservation_one_hold_per_machine: the second of two holds waits for the first, and is refused", async () => {
  const machineId = await machine(database().pool);
  const [one, two] = [await session(), await session()];
  const orgs = await organizations(database().pool, 2);
  await one.query("BEGIN");
  await hold(one, machineId, { organization: orgs[0] as string });
  const second = refusedBy(hold(two, machineId, { organization: orgs[1] as string }));
  await waitUntilBlocked(database().pool, two.pid);
  await one.query("COMMIT");
  expect(await second).toBe("reservation_one_hold_per_machine");
  expect(await breaches(database().pool)).toEqual([]);
});

test("reservation_one_hold_per_machine: without the index the test above would let both in", async () => {
  const machineId = await machine(database().pool);
  const client = await session();
  await client.query("BEGIN");
  await client.query("DROP INDEX reservation_one_hold_per_machine");
  const orgs = await organizations(database().pool, 2);
  for (const organization of orgs) await hold(client, machineId, { organization });
  const { rowCount } = await client.query(
    "SELECT FROM reservation WHERE machine_id = $1 AND state = 'held'",
    [machineId],
  );
  await client.query("ROLLBACK");
  expect(rowCount).toBe(2);
});

test("reservation_idempotency_key: one key, two machines, two sessions: one reservation", async () => {
  const [a, b] = [await machine(database().pool), await machine(database().pool)];
  const [organization] = (await organizations(database().pool, 1)) as [string];
  const [one, two] = [await session(), await session()];
  await one.query("BEGIN");
  await hold(one, a, { organization, key: "k" });
  const second = refusedBy(hold(two, b, { organization, key: "k" }));
  await waitUntilBlocked(database().pool, two.pid);
  await one.query("COMMIT");
  expect(await second).toBe("reservation_idempotency_key");
  const { rows } = await database().pool.query("SELECT occupancy FROM machine WHERE id = $1", [b]);
  expect(rows).toEqual([{ occupancy: "free" }]);
});

test("reservation_idempotency_key: another organization may use the same key", async () => {
  const orgs = await organizations(database().pool, 2);
  for (const organization of orgs)
    await hold(database().pool, await machine(database().pool), { organization, key: "same" });
  expect(await breaches(database().pool)).toEqual([]);
});

test("service_binding_one_active_per_machine: a second active binding is refused by the index itself", async () => {
  const { machineId } = await bound();
  const other = await hold(database().pool, await machine(database().pool));
  const client = await session();
  // Past every trigger, so that the index is alone.
  await client.query("SET session_replication_role = replica");
  const refused = refusedBy(
    client.query(
      `INSERT INTO service_binding (reservation_id, organization_id, machine_id, service_reference)
       SELECT id, organization_id, $2, 'svc' FROM reservation WHERE id = $1`,
      [other, machineId],
    ),
  );
  expect(await refused).toBe("service_binding_one_active_per_machine");
});

test("machine_never_held_and_bound: a hold on a bound machine is refused", async () => {
  const { machineId } = await bound();
  expect(await refusedBy(hold(database().pool, machineId))).toBe("machine_never_held_and_bound");
});

test("machine_never_held_and_bound: a hold that waited for a conversion sees the binding, although its statement began before", async () => {
  const machineId = await machine(database().pool);
  const reservationId = await hold(database().pool, machineId);
  const [organization] = (await organizations(database().pool, 1)) as [string];
  const [converting, reserving] = [await session(), await session()];
  await converting.query("BEGIN");
  await converting.query("SELECT FROM machine WHERE id = $1 FOR UPDATE", [machineId]);
  await convert(converting, reservationId);
  const late = refusedBy(hold(reserving, machineId, { organization }));
  await waitUntilBlocked(database().pool, reserving.pid);
  await converting.query("COMMIT");
  expect(await late).toBe("machine_never_held_and_bound");
  expect(await breaches(database().pool)).toEqual([]);
});

test("machine_never_held_and_bound: a session with a frozen snapshot is refused as well", async () => {
  const machineId = await machine(database().pool);
  const reservationId = await hold(database().pool, machineId);
  const [organization] = (await organizations(database().pool, 1)) as [string];
  const frozen = await session();
  await frozen.query("BEGIN ISOLATION LEVEL REPEATABLE READ");
  await frozen.query("SELECT count(*) FROM service_binding");
  const converting = await session();
  await converting.query("BEGIN");
  await convert(converting, reservationId);
  await converting.query("COMMIT");
  await expect(hold(frozen, machineId, { organization })).rejects.toThrow(/could not serialize/);
  await frozen.query("ROLLBACK");
  expect(await breaches(database().pool)).toEqual([]);
});

test("machine_never_held_and_bound: a binding on a machine that somebody else holds is refused", async () => {
  const { machineId, bindingId, reservationId } = await bound();
  await database().pool.query("UPDATE service_binding SET released_at = clock_timestamp() WHERE id = $1", [
    bindingId,
  ]);
  await database().pool.query("UPDATE machine SET status = 'ready' WHERE id = $1", [machineId]);
  await hold(database().pool, machineId);
  // The unique index on reservation_id would speak first; take it away to hear the trigger.
  const client = await session();
  await client.query("BEGIN");
  await client.query("DROP INDEX service_binding_one_per_reservation");
  expect(await refusedBy(bind(client, reservationId))).toBe("machine_never_held_and_bound");
  await client.query("ROLLBACK");
});

test("machine_never_held_and_bound: without the trigger a hold and a binding stand side by side", async () => {
  const { machineId } = await bound();
  const client = await session();
  await client.query("BEGIN");
  await client.query("ALTER TABLE reservation DISABLE TRIGGER reservation_guard");
  const [organization] = (await organizations(database().pool, 1)) as [string];
  expect(await refusedBy(hold(client, machineId, { organization }))).toBeNull();
  await client.query("ROLLBACK");
});

test("service_binding_of_converted_reservation: a hold is promoted, not bound beside itself", async () => {
  const reservationId = await hold(database().pool, await machine(database().pool));
  expect(await refusedBy(bind(database().pool, reservationId))).toBe("machine_never_held_and_bound");
  const cancelled = await hold(database().pool, await machine(database().pool));
  await database().pool.query(
    "UPDATE reservation SET state = 'cancelled', settled_at = now() WHERE id = $1",
    [cancelled],
  );
  expect(await refusedBy(bind(database().pool, cancelled))).toBe("service_binding_of_converted_reservation");
});

test("service_binding_of_its_reservation: a binding names its reservation's machine and owner", async () => {
  const reservationId = await hold(database().pool, await machine(database().pool));
  const other = await machine(database().pool);
  const client = await session();
  await client.query("BEGIN");
  await client.query("UPDATE reservation SET state = 'converted', settled_at = now() WHERE id = $1", [
    reservationId,
  ]);
  const refused = refusedBy(
    client.query(
      `INSERT INTO service_binding (reservation_id, organization_id, machine_id, service_reference)
       SELECT id, organization_id, $2, 'svc' FROM reservation WHERE id = $1`,
      [reservationId, other],
    ),
  );
  expect(await refused).toBe("service_binding_of_its_reservation");
  await client.query("ROLLBACK");
});

test("reservation_converted_has_binding: a conversion without its binding does not commit", async () => {
  const reservationId = await hold(database().pool, await machine(database().pool));
  const refused = refusedBy(
    database().pool.query("UPDATE reservation SET state = 'converted', settled_at = now() WHERE id = $1", [
      reservationId,
    ]),
  );
  expect(await refused).toBe("reservation_converted_has_binding");
});

test("service_binding_changes_once: a released binding is not released again, and nothing else changes", async () => {
  const { bindingId } = await bound();
  const { pool } = database();
  expect(
    await refusedBy(
      pool.query("UPDATE service_binding SET service_reference = 'x' WHERE id = $1", [bindingId]),
    ),
  ).toBe("service_binding_changes_once");
  await pool.query("UPDATE service_binding SET released_at = clock_timestamp() WHERE id = $1", [bindingId]);
  expect(
    await refusedBy(
      pool.query("UPDATE service_binding SET released_at = clock_timestamp() WHERE id = $1", [bindingId]),
    ),
  ).toBe("service_binding_changes_once");
});

test("a machine that is released goes to CLEANING in the same statement, and cannot be held", async () => {
  const { bindingId, machineId } = await bound();
  await database().pool.query("UPDATE service_binding SET released_at = clock_timestamp() WHERE id = $1", [
    bindingId,
  ]);
  const { rows } = await database().pool.query("SELECT status, occupancy FROM machine WHERE id = $1", [
    machineId,
  ]);
  expect(rows).toEqual([{ status: "cleaning", occupancy: "free" }]);
  expect(await refusedBy(hold(database().pool, machineId))).toBe("reservation_machine_is_ready");
});

test("machine_in_use: a held and a bound machine keep their status and identity, whatever SQL is sent", async () => {
  const held = await machine(database().pool);
  await hold(database().pool, held);
  const { machineId } = await bound();
  for (const id of [held, machineId]) {
    for (const change of ["status = 'retired'", "cpu_cores = 1", "model = 'other'", "asset_tag = 'other'"]) {
      expect(
        await refusedBy(database().pool.query(`UPDATE machine SET ${change} WHERE id = $1`, [id])),
        change,
      ).toBe("machine_in_use");
    }
    expect(
      await refusedBy(
        database().pool.query("UPDATE machine SET labels = '{new}', location = 'here' WHERE id = $1", [id]),
      ),
    ).toBeNull();
  }
});

test("machine_occupancy_is_derived: nobody writes it by hand", async () => {
  const id = await machine(database().pool);
  expect(
    await refusedBy(database().pool.query("UPDATE machine SET occupancy = 'bound' WHERE id = $1", [id])),
  ).toBe("machine_occupancy_is_derived");
});

test("reservation_is_kept, service_binding_is_kept: what was sold stays on record, and CLEANING is not skipped", async () => {
  const { machineId, reservationId, bindingId } = await bound();
  const { pool } = database();
  expect(await refusedBy(pool.query("DELETE FROM service_binding WHERE id = $1", [bindingId]))).toBe(
    "service_binding_is_kept",
  );
  expect(await refusedBy(pool.query("DELETE FROM reservation WHERE id = $1", [reservationId]))).toBe(
    "reservation_is_kept",
  );
  const { rows } = await pool.query("SELECT occupancy FROM machine WHERE id = $1", [machineId]);
  expect(rows).toEqual([{ occupancy: "bound" }]);
});

test("reservation_deadline_is_kept: an overdue hold is neither converted nor prolonged, and no deadline comes nearer", async () => {
  const { pool } = database();
  const overdue = await hold(pool, await machine(pool), { endsIn: -60 });
  const client = await session();
  await client.query("BEGIN");
  expect(await refusedBy(convert(client, overdue))).toBe("reservation_deadline_is_kept");
  await client.query("ROLLBACK");
  const prolong = "UPDATE reservation SET expires_at = expires_at + interval '10 minutes' WHERE id = $1";
  expect(await refusedBy(pool.query(prolong, [overdue]))).toBe("reservation_deadline_is_kept");
  const live = await hold(pool, await machine(pool), { endsIn: 60 });
  expect(await refusedBy(pool.query(prolong, [live]))).toBeNull();
  expect(
    await refusedBy(
      pool.query("UPDATE reservation SET expires_at = expires_at - interval '1 second' WHERE id = $1", [
        live,
      ]),
    ),
  ).toBe("reservation_deadline_is_kept");
});

test("reserve_machine keeps its plans: no compilation, one plan a connection, whatever the statistics say", async () => {
  const { rows } = await database().pool.query<{ settings: string[] }>(
    "SELECT proconfig AS settings FROM pg_proc WHERE proname = 'reserve_machine'",
  );
  expect(rows[0]?.settings).toEqual(
    expect.arrayContaining([
      "jit=off",
      "plan_cache_mode=force_generic_plan",
      "enable_sort=off",
      "enable_seqscan=off",
    ]),
  );
});

test("machine.occupancy follows the rows through every path", async () => {
  const { pool } = database();
  const id = await machine(pool);
  const occupancy = async () =>
    (await pool.query<{ occupancy: string }>("SELECT occupancy FROM machine WHERE id = $1", [id])).rows[0]
      ?.occupancy;
  const reservationId = await hold(pool, id);
  expect(await occupancy()).toBe("held");
  await pool.query("SELECT reservation_cancel($1, NULL, NULL)", [reservationId]);
  expect(await occupancy()).toBe("free");
  const next = await hold(pool, id, { endsIn: -1 });
  expect(await occupancy()).toBe("held");
  await pool.query("SELECT reservation_expire($1)", [next]);
  expect(await occupancy()).toBe("free");
  expect(await breaches(pool)).toEqual([]);
});

test("the table of states agrees with the partial index as the database reports it", async () => {
  const { rows } = await database().pool.query<{ predicate: string }>(
    "SELECT pg_get_expr(indpred, indrelid) AS predicate FROM pg_index WHERE indexrelid = 'reservation_one_hold_per_machine'::regclass",
  );
  const named = [...(rows[0]?.predicate ?? "").matchAll(/'(\w+)'/g)].map((match) => match[1]);
  const holding = RESERVATION_STATES.filter((state) => RESERVATION_STATE_TABLE[state].holdsMachine);
  expect(named).toEqual(holding);
});

test("every state is tried against the index: those that hold a machine refuse a second hold, the others do not", async () => {
  const { pool } = database();
  for (const state of RESERVATION_STATES) {
    const machineId = await machine(pool);
    const client = await session();
    // Replica role: only the index decides, and each state can be had without its history.
    await client.query("SET session_replication_role = replica");
    const reservationId = await hold(client, machineId, {
      organization: (await organizations(pool, 1))[0] as string,
    });
    if (state !== "held") {
      await client.query("UPDATE reservation SET state = $2, settled_at = now() WHERE id = $1", [
        reservationId,
        state,
      ]);
    }
    const second = await refusedBy(
      hold(client, machineId, { organization: (await organizations(pool, 1))[0] as string }),
    );
    expect(second, state).toBe(
      RESERVATION_STATE_TABLE[state].holdsMachine ? "reservation_one_hold_per_machine" : null,
    );
    await client.query("DELETE FROM reservation");
  }
});

test("every transition is tried: the trigger lets through what the table says, and nothing else", async () => {
  const { pool } = database();
  for (const from of RESERVATION_STATES) {
    for (const to of RESERVATION_STATES) {
      if (from === to) continue;
      const reservationId = await hold(pool, await machine(pool));
      const client = await session();
      await client.query("BEGIN");
      if (from === "converted") await convert(client, reservationId);
      else if (from !== "held") {
        await client.query("UPDATE reservation SET state = $2, settled_at = now() WHERE id = $1", [
          reservationId,
          from,
        ]);
      }
      await client.query("SAVEPOINT before");
      const refused = await refusedBy(
        client.query(
          "UPDATE reservation SET state = $2, settled_at = CASE WHEN $2 = 'held' THEN NULL ELSE now() END WHERE id = $1",
          [reservationId, to],
        ),
      );
      const allowed = (RESERVATION_STATE_TABLE[from].next as readonly string[]).includes(to);
      expect(refused, `${from} to ${to}`).toBe(allowed ? null : "reservation_state_transition");
      await client.query("ROLLBACK");
    }
  }
});

test("a reservation's frozen parts stay, and it never lives longer than twice its hold time", async () => {
  const { pool } = database();
  const reservationId = await hold(pool, await machine(pool));
  const other = await machine(pool);
  expect(
    await refusedBy(
      pool.query("UPDATE reservation SET machine_id = $2 WHERE id = $1", [reservationId, other]),
    ),
  ).toBe("reservation_identity_is_frozen");
  expect(
    await refusedBy(pool.query("UPDATE reservation SET choice = '{}' WHERE id = $1", [reservationId])),
  ).toBe("reservation_identity_is_frozen");
  expect(
    await refusedBy(
      pool.query("UPDATE reservation SET expires_at = held_at + interval '1801 seconds' WHERE id = $1", [
        reservationId,
      ]),
    ),
  ).toBe("reservation_deadline_bounded");
});

test("conversion against reservation: a session that reads all the time never sees the machine free", async () => {
  const { pool } = database();
  await switchSet(pool, "datacenter", true);
  const reader = await session();
  const seen = new Set<string>();
  for (let round = 0; round < 30; round++) {
    const machineId = await machine(pool);
    const reservationId = await hold(pool, machineId);
    const rivals = await organizations(pool, 3);
    let done = false;
    const reading = (async () => {
      while (!done) {
        const { rows } = await reader.query<{ availability: string }>(
          "SELECT availability FROM machine_now WHERE id = $1",
          [machineId],
        );
        seen.add((rows[0] as { availability: string }).availability);
      }
    })();
    const outcomes = await Promise.all([
      pool.query("SELECT reservation_convert($1, NULL, 'svc', true) AS outcome", [reservationId]),
      ...rivals.map((organization) =>
        pool.query("SELECT outcome FROM reserve_machine($1, 'rival', $2, '{}', 900, 10, 0)", [
          organization,
          unique("rival"),
        ]),
      ),
    ]);
    done = true;
    await reading;
    expect(outcomes.map((outcome) => (outcome.rows[0] as { outcome: string }).outcome)).toEqual([
      "converted",
      "nothing_won",
      "nothing_won",
      "nothing_won",
    ]);
    await clear(pool);
  }
  expect([...seen].sort()).not.toContain("free");
  expect(seen).toContain("bound");
});
