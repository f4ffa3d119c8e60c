import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, beforeEach, expect, inject, test } from "vitest";
import { globalIdDecode } from "../../src/graphql/globalId.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { barrier, waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import { ReserveMachineDocument, type ReserveMachineMutation } from "../support/operations.ts";
import {
  breaches,
  clear,
  hold,
  machines,
  order,
  organizations,
  restock,
  switchSet,
  vanish,
} from "../support/world.ts";
import { wrongReserve } from "../support/wrongWalk.ts";

const database = useTestDatabase();
const apis: TestApi[] = [];
let orgs: string[] = [];

type Result = NonNullable<ReserveMachineMutation["reserveMachine"]>;
type Kind = Result["__typename"];

beforeAll(async () => {
  // Two servers on one database, with pools of their own: what two processes would be to each other.
  for (let index = 0; index < 2; index++) apis.push(await startApi(database().url, { poolSize: 30 }));
  await switchSet(database().pool, "datacenter", true);
  orgs = await organizations(database().pool, 100);
});
afterAll(async () => {
  for (const api of apis) await api.close();
});
beforeEach(() => clear(database().pool));

async function reserve(at: number, variables: ReturnType<typeof order>): Promise<Result> {
  const api = apis[at % apis.length] as TestApi;
  const { reserveMachine } = await api.run(ReserveMachineDocument, variables);
  if (reserveMachine === null) throw new Error("no result");
  return reserveMachine;
}

/** One order each for the first `count` organizations, all at once. */
function orders(count: number, requirements: object = {}): Promise<Result[]> {
  return Promise.all(
    Array.from({ length: count }, (_, index) => reserve(index, order(orgs[index] as string, requirements))),
  );
}

const won = (results: Result[]) =>
  results.flatMap((result) =>
    result.__typename === "MachineReserved" ? [result.reservation.machine.id] : [],
  );
const count = (results: Result[], ...kinds: Kind[]) =>
  results.filter((result) => kinds.includes(result.__typename)).length;

async function activeHolds(): Promise<number> {
  const { rows } = await database().pool.query<{ holds: number }>(
    "SELECT count(*)::integer AS holds FROM reservation WHERE state = 'held'",
  );
  return (rows[0] as { holds: number }).holds;
}

test("8 orders, 3 machines: 3 reservations on 3 machines and 5 honest refusals, in each of 50 rounds", async () => {
  await machines(database().pool, 3);
  for (let round = 0; round < 50; round++) {
    const results = await orders(8);
    expect(new Set(won(results)).size, `round ${round}`).toBe(3);
    expect(count(results, "SomeoneWasFaster", "NothingAvailable")).toBe(5);
    expect(await activeHolds()).toBe(3);
    expect(await breaches(database().pool)).toEqual([]);
    await restock(database().pool);
  }
});

test("with the whole set locked at once, the same orders leave machines unsold", async () => {
  await machines(database().pool, 3);
  const clients = await Promise.all(Array.from({ length: 8 }, () => database().connect()));
  const met = barrier(8);
  const results = await Promise.all(
    clients.map((client, index) => wrongReserve(client, orgs[index] as string, randomUUID(), () => met())),
  );
  await Promise.all(clients.map((client) => client.end()));
  expect(results.filter(Boolean).length).toBeLessThan(3);
});

// Three transactions stay open here, and five more come: a pooler with two connections has no room for that.
test.skipIf(inject("pooler") !== null)(
  "8 orders, 3 machines, all of them open at once: the 5 that pass over locked machines are told to retry",
  async () => {
    const { pool } = database();
    await machines(pool, 3);
    // Every insert waits for the gate, so that three orders are uncommitted while the others walk.
    await pool.query(`
    CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock_shared(4711); RETURN NEW; END $$;
    CREATE TRIGGER gate BEFORE INSERT ON reservation FOR EACH ROW EXECUTE FUNCTION gate()`);
    const keeper = await database().connect();
    try {
      await keeper.query("SELECT pg_advisory_lock(4711)");
      const refused: Result[] = [];
      const running = Array.from({ length: 8 }, (_, index) =>
        reserve(index, order(orgs[index] as string)).then((result) => {
          if (result.__typename !== "MachineReserved") refused.push(result);
          return result;
        }),
      );
      await waitUntil(
        () => Promise.resolve(refused.length === 5),
        "five orders are refused while three wait",
      );
      await keeper.query("SELECT pg_advisory_unlock(4711)");
      const results = await Promise.all(running);
      expect(new Set(won(results)).size).toBe(3);
      for (const result of refused) {
        expect(result).toMatchObject({
          __typename: "SomeoneWasFaster",
          nextAction: "RETRY",
          retryAfterMs: expect.any(Number),
          eligible: 3,
          skipped: 3,
        });
      }
      expect(await breaches(pool)).toEqual([]);
    } finally {
      await keeper.end();
      await pool.query("DROP TRIGGER gate ON reservation; DROP FUNCTION gate()");
    }
  },
);

test("2 orders, 1 machine: one MachineReserved, one refusal", async () => {
  await machines(database().pool, 1);
  for (let round = 0; round < 20; round++) {
    const results = await orders(2);
    expect(count(results, "MachineReserved")).toBe(1);
    expect(count(results, "SomeoneWasFaster", "NothingAvailable")).toBe(1);
    await restock(database().pool);
  }
});

test("12 orders, 12 machines: twelve reservations, every round", async () => {
  await machines(database().pool, 12);
  for (let round = 0; round < 20; round++) {
    const results = await orders(12);
    expect(new Set(won(results)).size, `round ${round}`).toBe(12);
    await restock(database().pool);
  }
  expect(await breaches(database().pool)).toEqual([]);
});

test("30 orders, 10 machines: ten reservations, twenty typed refusals (H01)", async () => {
  await machines(database().pool, 10);
  const results = await orders(30);
  expect(new Set(won(results)).size).toBe(10);
  expect(count(results, "SomeoneWasFaster", "NothingAvailable")).toBe(20);
});

test("100 orders, 100 machines, 25 candidates each: nobody waits for a machine, refusals say RETRY, the next waves sell the rest", async () => {
  await machines(database().pool, 100);
  let sold = new Set<string>();
  let pending = Array.from({ length: 100 }, (_, index) => order(orgs[index] as string));
  for (let wave = 0; pending.length > 0 && wave < 10; wave++) {
    const results = await Promise.all(pending.map((variables, index) => reserve(index, variables)));
    expect(count(results, "MachineReserved", "SomeoneWasFaster"), `wave ${wave}`).toBe(results.length);
    sold = new Set([...sold, ...won(results)]);
    pending = pending.filter((_, index) => results[index]?.__typename === "SomeoneWasFaster");
  }
  expect(sold.size).toBe(100);
  expect(await breaches(database().pool)).toEqual([]);
});

test("an order passes over 25 locked machines and no more, and does not wait for them", async () => {
  const { pool } = database();
  await machines(pool, 30);
  const keeper = await database().connect();
  try {
    await keeper.query("BEGIN");
    await keeper.query("SELECT FROM machine FOR UPDATE");
    const [result] = await orders(1);
    expect(result).toMatchObject({ __typename: "SomeoneWasFaster", skipped: 25, lostRaces: 0, eligible: 30 });
  } finally {
    await keeper.query("ROLLBACK");
    await keeper.end();
  }
});

test("5 requests with one key, 4 machines: one reservation and no NothingAvailable, in each of 50 rounds", async () => {
  await machines(database().pool, 4);
  for (let round = 0; round < 50; round++) {
    const variables = order(orgs[0] as string);
    const results = await Promise.all(Array.from({ length: 5 }, (_, index) => reserve(index, variables)));
    expect(count(results, "MachineReserved")).toBe(1);
    expect(count(results, "MachineReserved", "AlreadyReserved", "SomeoneWasFaster")).toBe(5);
    const ids = results.flatMap((result) => ("reservation" in result ? [result.reservation.id] : []));
    expect(new Set(ids).size).toBe(1);
    expect(await activeHolds()).toBe(1);
    await restock(database().pool);
  }
});

test("10 identical requests, 1 machine, then a second wave: the same reservation with the same deadline (H15)", async () => {
  await machines(database().pool, 1);
  const variables = order(orgs[0] as string);
  const wave = () => Promise.all(Array.from({ length: 10 }, (_, index) => reserve(index, variables)));
  const first = await wave();
  expect(count(first, "MachineReserved")).toBe(1);
  expect(count(first, "NothingAvailable")).toBe(0);
  const again = await wave();
  expect(count(again, "AlreadyReserved")).toBe(10);
  const deadlines = [...first, ...again].flatMap((result) =>
    "reservation" in result ? [result.reservation.expiresAt] : [],
  );
  expect(new Set(deadlines).size).toBe(1);
});

test("one key with two different orders at once: one is reserved, the other told that the key was reused", async () => {
  await machines(database().pool, 4);
  for (let round = 0; round < 20; round++) {
    const key = randomUUID();
    const results = await Promise.all([
      reserve(0, order(orgs[0] as string, { minCpuCores: 2 }, key)),
      reserve(1, order(orgs[0] as string, { minCpuCores: 4 }, key)),
    ]);
    expect(results.map((result) => result.__typename).sort()).toEqual([
      "IdempotencyKeyReused",
      "MachineReserved",
    ]);
    await restock(database().pool);
  }
});

test("parallel orders of one organization do not pass its limit on holds (H03)", async () => {
  await machines(database().pool, 30);
  const results = await Promise.all(
    Array.from({ length: 20 }, (_, index) => reserve(index, order(orgs[0] as string))),
  );
  expect(count(results, "MachineReserved")).toBe(10);
  expect(count(results, "HoldLimitReached")).toBe(10);
  for (const result of results) {
    if (result.__typename !== "HoldLimitReached") continue;
    expect(result.limit).toBe(10);
    expect(result.held).toHaveLength(10);
    expect(result.retryAfterMs).toBeGreaterThan(0);
  }
});

test("candidate 1 is lost in the insert, candidate 2 is won, in one request", async () => {
  const { pool } = database();
  const [first] = await machines(pool, 1, { cpuCores: 4 });
  const [second] = await machines(pool, 1, { cpuCores: 8 });
  // A writer that bypasses the triggers leaves a hold that only the unique index knows of.
  const bypass = await database().connect();
  await bypass.query("SET session_replication_role = replica");
  await bypass.query(
    `INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, held_at, hold_seconds, expires_at, choice)
     VALUES ($1, $2, 'bypass', 'bypass', '{}', now(), 900, now() + interval '900 seconds', '{}')`,
    [orgs[50], first],
  );
  await bypass.end();
  const [result] = await orders(1);
  expect(result).toMatchObject({
    __typename: "MachineReserved",
    reservation: { choice: { rank: 2, lostRaces: 1, skipped: 0 } },
  });
  const { rows } = await pool.query("SELECT machine_id FROM reservation WHERE order_reference = 'order-1'");
  expect(rows).toEqual([{ machine_id: second }]);
});

test("after five races lost the walk ends, and the refusal says RETRY", async () => {
  const { pool } = database();
  const all = await machines(pool, 7);
  const bypass = await database().connect();
  await bypass.query("SET session_replication_role = replica");
  await bypass.query(
    `INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, held_at, hold_seconds, expires_at, choice)
     SELECT $1, m, 'bypass', 'bypass-' || m, '{}', now(), 900, now() + interval '900 seconds', '{}' FROM unnest($2::uuid[]) m`,
    [orgs[50], all.slice(0, 6)],
  );
  await bypass.end();
  const outcomes: Result[] = [];
  for (let index = 0; index < 40; index++) {
    const result = await reserve(index, order(orgs[index] as string));
    outcomes.push(result);
    if (result.__typename === "SomeoneWasFaster") break;
    if (result.__typename === "MachineReserved")
      await vanish(pool, globalIdDecode(result.reservation.id)?.id ?? "");
  }
  // Where an order enters the group is derived from its key: most of them meet the free one in time.
  expect(outcomes.at(-1)).toMatchObject({
    __typename: "SomeoneWasFaster",
    lostRaces: 5,
    nextAction: "RETRY",
  });
});

test("a violation that is not one of the arbiters' is a bug: masked, with a request id, and nothing written (H10)", async () => {
  const { pool } = database();
  await machines(pool, 1);
  await pool.query("CREATE UNIQUE INDEX unrelated ON reservation (order_reference)");
  try {
    const [first] = await orders(1);
    expect(first?.__typename).toBe("MachineReserved");
    await machines(pool, 1);
    const answer = await (apis[0] as TestApi).send(
      "mutation ($input: ReserveMachineInput!) { reserveMachine(input: $input) { __typename } }",
      order(orgs[1] as string),
    );
    expect(answer.data).toEqual({ reserveMachine: null });
    expect(answer.errors?.[0]?.extensions).toEqual({
      code: "INTERNAL_SERVER_ERROR",
      requestId: answer.headers.get("x-request-id"),
    });
    expect(JSON.stringify(answer.errors)).not.toMatch(/unrelated|unique|reservation_|SELECT/);
    expect(await activeHolds()).toBe(1);
  } finally {
    await pool.query("DROP INDEX unrelated");
  }
});

test("a deadlock is resolved by repeating, not shown to the caller (H11)", async () => {
  const { pool } = database();
  await machines(pool, 1);
  // The first two tries die with the SQLSTATE of a deadlock.
  await pool.query(`
    CREATE SEQUENCE tries;
    CREATE FUNCTION fail_twice() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF nextval('tries') <= 2 THEN RAISE EXCEPTION 'made up' USING ERRCODE = 'deadlock_detected'; END IF;
      RETURN NEW;
    END $$;
    CREATE TRIGGER fail_twice BEFORE INSERT ON reservation FOR EACH ROW EXECUTE FUNCTION fail_twice()`);
  try {
    const [result] = await orders(1);
    expect(result?.__typename).toBe("MachineReserved");
    await restock(pool);
    await pool.query("ALTER SEQUENCE tries RESTART");
    await pool.query(
      "CREATE OR REPLACE FUNCTION fail_twice() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'made up' USING ERRCODE = 'deadlock_detected'; END $$",
    );
    const [refused] = await orders(1);
    expect(refused?.__typename).toBe("SomeoneWasFaster");
  } finally {
    await pool.query(
      "DROP TRIGGER fail_twice ON reservation; DROP FUNCTION fail_twice(); DROP SEQUENCE tries",
    );
  }
});

test("40 callers, a pool of 4, one machine: typed answers only, and the pool is whole afterwards (H12)", async () => {
  await machines(database().pool, 1);
  const small = await startApi(database().url, { poolSize: 4 });
  try {
    const results = await Promise.all(
      Array.from({ length: 40 }, async (_, index) => {
        const { reserveMachine } = await small.run(ReserveMachineDocument, order(orgs[index] as string));
        return reserveMachine as Result;
      }),
    );
    expect(count(results, "MachineReserved")).toBe(1);
    expect(count(results, "SomeoneWasFaster", "NothingAvailable")).toBe(39);
    const { pool } = small.database;
    expect(pool.waitingCount).toBe(0);
    expect(pool.idleCount).toBe(pool.totalCount);
    expect(pool.totalCount).toBeLessThanOrEqual(4);
    const { rows } = await database().pool.query(
      "SELECT count(*)::integer AS open FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
    );
    expect(rows).toEqual([{ open: 0 }]);
  } finally {
    await small.close();
  }
});

test("an organization whose row somebody keeps locked is told to retry, and others are not held up", async () => {
  const { pool } = database();
  await machines(pool, 2);
  const keeper = await database().connect();
  try {
    await keeper.query("BEGIN");
    await keeper.query("SELECT FROM organization WHERE id = $1 FOR UPDATE", [orgs[0]]);
    const slow = reserve(0, order(orgs[0] as string));
    const quick = await reserve(1, order(orgs[1] as string));
    expect(quick.__typename).toBe("MachineReserved");
    expect((await slow).__typename).toBe("SomeoneWasFaster");
  } finally {
    await keeper.query("ROLLBACK");
    await keeper.end();
  }
});

test("an overdue hold whose row somebody has locked is passed over: the next overdue machine is sold", async () => {
  const { pool } = database();
  const locked = await hold(pool, (await machines(pool, 1, { cpuCores: 4 }))[0] as string, { endsIn: -5 });
  const other = (await machines(pool, 1, { cpuCores: 8 }))[0] as string;
  await hold(pool, other, { endsIn: -5 });
  const keeper = await database().connect();
  try {
    await keeper.query("BEGIN");
    await keeper.query("SELECT FROM reservation WHERE id = $1 FOR UPDATE", [locked]);
    const [result] = await orders(1);
    expect(result).toMatchObject({
      __typename: "MachineReserved",
      reservation: { choice: { skipped: 1, cpuCores: 8 } },
    });
    // Neither does the sweeper wait for it.
    const { rows } = await pool.query("SELECT reservation_expire($1) AS outcome", [locked]);
    expect(rows).toEqual([{ outcome: "busy" }]);
  } finally {
    await keeper.end();
  }
});
