import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { type Database, databaseOpen } from "../../src/database/client.ts";
import { logOpen } from "../../src/logging.ts";
import { sweep } from "../../src/workers/sweeper.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import { SweeperDocument } from "../support/operations.ts";
import { holdfast, stopAll } from "../support/process.ts";
import { breaches, clear, hold, machine, machines, organizations, switchSet } from "../support/world.ts";

const database = useTestDatabase();
const log = logOpen("silent");
const pools: Database[] = [];
let api: TestApi;

beforeAll(async () => {
  for (let index = 0; index < 2; index++) {
    pools.push(
      databaseOpen(database().url, { poolSize: 4, namedStatements: true, onError: () => undefined }),
    );
  }
  api = await startApi(database().url);
});
afterAll(async () => {
  for (const pool of pools) await pool.close();
  await api.close();
});
afterEach(stopAll);
beforeEach(async () => {
  await clear(database().pool);
  await database().pool.query("DELETE FROM sweep");
});

const [one, two] = [() => (pools[0] as Database).db, () => (pools[1] as Database).db];

async function overdue(count: number): Promise<string[]> {
  const { pool } = database();
  const ids: string[] = [];
  for (const id of await machines(pool, count)) ids.push(await hold(pool, id, { endsIn: -10 }));
  return ids;
}

test("two sweepers, a hundred overdue holds, one odd row, three ticks: 99 expired once each, the odd one tried alone (H08)", async () => {
  const { pool } = database();
  const ids = await overdue(100);
  const odd = ids[37] as string;
  await pool.query(`
    CREATE TABLE expiry (reservation_id uuid NOT NULL);
    CREATE FUNCTION odd_row() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF NEW.id = '${odd}' THEN RAISE EXCEPTION 'an odd row'; END IF;
      IF NEW.state = 'expired' THEN INSERT INTO expiry VALUES (NEW.id); END IF;
      RETURN NEW;
    END $$;
    CREATE TRIGGER odd_row BEFORE UPDATE ON reservation FOR EACH ROW EXECUTE FUNCTION odd_row()`);
  try {
    let expired = 0;
    for (let tick = 0; tick < 3; tick++) {
      const reports = await Promise.all([sweep(one(), log), sweep(two(), log)]);
      expired += reports.reduce((sum, report) => sum + report.expired, 0);
      // At least one of the two met the odd row in every tick, and said so.
      expect(reports.reduce((sum, report) => sum + report.failed, 0)).toBeGreaterThan(0);
    }
    expect(expired).toBe(99);
    const { rows } = await pool.query(
      "SELECT count(*)::integer AS all, count(DISTINCT reservation_id)::integer AS once FROM expiry",
    );
    expect(rows).toEqual([{ all: 99, once: 99 }]);
    const left = await pool.query("SELECT id FROM reservation WHERE state = 'held'");
    expect(left.rows).toEqual([{ id: odd }]);
    expect(await breaches(pool)).toEqual([]);
    expect((await api.run(SweeperDocument, {})).sweeper).toMatchObject({
      overdue: 1,
      lastFailed: expect.any(Number),
      lastRanAt: expect.any(String),
    });
  } finally {
    await pool.query("DROP TRIGGER odd_row ON reservation; DROP FUNCTION odd_row(); DROP TABLE expiry");
  }
});

test("a hold whose machine somebody has locked is passed over, and swept the next time", async () => {
  const { pool } = database();
  await overdue(3);
  const keeper = await database().connect();
  await keeper.query("BEGIN");
  await keeper.query("SELECT FROM machine ORDER BY id LIMIT 1 FOR UPDATE");
  expect(await sweep(one(), log)).toEqual({ expired: 2, failed: 0 });
  await keeper.query("ROLLBACK");
  await keeper.end();
  expect(await sweep(one(), log)).toEqual({ expired: 1, failed: 0 });
  expect(await breaches(pool)).toEqual([]);
});

test("a hold that was extended after the sweeper read it is left alone", async () => {
  const { pool } = database();
  const id = await hold(pool, await machine(pool), { endsIn: 600 });
  const { rows } = await pool.query("SELECT reservation_expire($1) AS outcome", [id]);
  expect(rows).toEqual([{ outcome: "not_due" }]);
});

test("before and after a sweep every answer is the same, to the microsecond", async () => {
  const { pool } = database();
  await overdue(2);
  const read = async () =>
    (
      await pool.query(
        "SELECT id, state, settled_at::text, expires_at::text FROM reservation_now ORDER BY id",
      )
    ).rows;
  const before = await read();
  expect(await sweep(one(), log)).toEqual({ expired: 2, failed: 0 });
  expect(await read()).toEqual(before);
});

test("expired and cancelled stay apart", async () => {
  const { pool } = database();
  const ids = await overdue(1);
  const cancelled = await hold(pool, await machine(pool));
  await pool.query("SELECT reservation_cancel($1, NULL, NULL)", [cancelled]);
  await sweep(one(), log);
  const { rows } = await pool.query<{ id: string; state: string }>(
    "SELECT id, state FROM reservation ORDER BY state",
  );
  expect(rows).toEqual([
    { id: cancelled, state: "cancelled" },
    { id: ids[0], state: "expired" },
  ]);
});

const environment = (seconds: string) => ({ DATABASE_URL: database().url, HOLDFAST_SWEEP_SECONDS: seconds });

/** Process ids of the workers that have recorded a sweep. */
async function workersSeen(): Promise<number[]> {
  const { rows } = await database().pool.query<{ worker: string }>("SELECT DISTINCT worker FROM sweep");
  return rows.map((row) => Number(row.worker.split(":").at(-1)));
}

const held = async () =>
  (await database().pool.query("SELECT FROM reservation WHERE state = 'held'")).rowCount;

test("`holdfast worker`, twice side by side and with the switch closed, sweeps and ends on SIGTERM with 0", async () => {
  await organizations(database().pool, 1);
  await switchSet(database().pool, "datacenter", false);
  await overdue(20);
  const workers = [holdfast(["worker"], environment("1")), holdfast(["worker"], environment("1"))];
  await waitUntil(async () => (await held()) === 0, "the workers have swept");
  // It goes on: what falls due later is swept by a later tick.
  await overdue(1);
  await waitUntil(async () => (await held()) === 0, "a later tick has swept");
  await waitUntil(async () => (await workersSeen()).length === 2, "both workers have reported a sweep");
  for (const worker of workers) worker.child.kill("SIGTERM");
  expect(await Promise.all(workers.map((worker) => worker.ended()))).toEqual([0, 0]);
  expect(await breaches(database().pool)).toEqual([]);
});

test("the API process sweeps by default, and not with HOLDFAST_SWEEP_SECONDS=0", async () => {
  await overdue(3);
  const silent = holdfast(["serve"], environment("0"));
  await silent.served();
  const sweeping = holdfast(["serve"], environment("1"));
  await waitUntil(async () => (await held()) === 0, "the server has swept");
  await waitUntil(async () => (await workersSeen()).length > 0, "the sweep is recorded");
  expect(await workersSeen()).toEqual([sweeping.child.pid]);
  silent.child.kill("SIGTERM");
  sweeping.child.kill("SIGTERM");
  expect(await Promise.all([silent.ended(), sweeping.ended()])).toEqual([0, 0]);
});
