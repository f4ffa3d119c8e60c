import type pg from "pg";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { databaseOpen } from "../../src/database/client.ts";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { logOpen } from "../../src/logging.ts";
import { orchestratorStart, type SimulatedOrchestrator } from "../../src/orchestrator/simulated.ts";
import { staleAbandon } from "../../src/publishing/publisher.ts";
import { ATTEMPT_STATES, ATTEMPT_TRANSITIONS } from "../../src/publishing/states.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { barrier, waitUntilBlocked } from "../support/barrier.ts";
import { type TestDatabase, useTestDatabase } from "../support/database.ts";
import { CancelPublishDocument, PublishAppDocument, type PublishAppMutation } from "../support/operations.ts";
import {
  buildKnown,
  buildsOf,
  project,
  publish,
  publishingBreaches,
  publishingConfig,
  slug,
} from "../support/publishing.ts";
import { switchSet } from "../support/world.ts";
import { wrongClaim } from "../support/wrongClaim.ts";

const database = useTestDatabase();
/** Where the claim is replaced by a wrong one. */
const wrong = useTestDatabase();
let orchestrator: SimulatedOrchestrator;
const apis: TestApi[] = [];

type Result = NonNullable<PublishAppMutation["publishApp"]>;

beforeAll(async () => {
  orchestrator = await orchestratorStart({
    host: "127.0.0.1",
    port: 0,
    buildSeconds: 0.3,
    appDomain: "apps.test",
  });
  // Two servers on one database, with pools of their own: what two processes would be to each other.
  for (let index = 0; index < 2; index++) {
    apis.push(
      await startApi(database().url, { poolSize: 20, publishing: publishingConfig(orchestrator.url) }),
    );
  }
});
afterAll(async () => {
  for (const api of apis) await api.close();
  await orchestrator.close();
});
beforeEach(() => switchSet(database().pool, "publishing", true));

async function ask(
  servers: readonly TestApi[],
  at: number,
  id: string,
  name: string,
  source?: string,
): Promise<Result> {
  const { publishApp } = await (servers[at % servers.length] as TestApi).run(
    PublishAppDocument,
    publish(id, name, source),
  );
  return publishApp as Result;
}

/** So many publishes of one project at once, over all servers. */
function publishes(
  servers: readonly TestApi[],
  count: number,
  id: string,
  name: string,
  source?: string,
): Promise<Result[]> {
  return Promise.all(Array.from({ length: count }, (_, at) => ask(servers, at, id, name, source)));
}

const started = (results: Result[]) =>
  results.flatMap((result) => (result.__typename === "PublishStarted" ? [result] : []));
const running = (results: Result[]) =>
  results.flatMap((result) => (result.__typename === "PublishInProgress" ? [result] : []));

/** Rounds of `count` publishes within 84 ms, first publish and republishes: one build each. */
async function oneBuildEach(
  pool: pg.Pool,
  servers: readonly TestApi[],
  count: number,
  rounds: number,
  id?: string,
): Promise<void> {
  id ??= await project(pool);
  const { rows } = await pool.query<{ attempts: number }>(
    "SELECT coalesce(max(attempt), 0) AS attempts FROM deployment WHERE project_id = $1",
    [id],
  );
  const first = (rows[0]?.attempts ?? 0) + 1;
  const name = slug();
  for (let round = first; round < first + rounds; round++) {
    // It lasts until it is cancelled, so that the last of them comes while it runs, however slow the machine is.
    const results = await publishes(servers, count, id, name, "https://git.test/app?simulate=never");
    const [mine, ...others] = started(results);
    expect(mine?.attempt, `round ${round}`).toBe(round);
    expect(others).toEqual([]);
    const told = running(results);
    expect(told).toHaveLength(count - 1);
    for (const result of told) {
      expect([result.deployment.id, result.attempt]).toEqual([mine?.deployment.id, round]);
    }
    const deploymentId = mine?.deployment.id as string;
    await buildKnown(pool, deploymentId, round);
    await (servers[0] as TestApi).run(CancelPublishDocument, { input: { deploymentId, attempt: round } });
    const builds = await buildsOf(orchestrator.url, deploymentId);
    expect(builds.map(({ attempt, posts }) => [attempt, posts])).toEqual(
      Array.from({ length: round }, (_, index) => [index + 1, 1]),
    );
  }
}

test("3 publishes within 84 ms, first publish and republish: one build, and two that are told which to follow", async () => {
  await oneBuildEach(database().pool, apis, 3, 4);
  expect(await publishingBreaches(database().pool)).toEqual([]);
});

test("20 publishes at once, first publish and republish: one build, and nineteen that are told", async () => {
  await oneBuildEach(database().pool, apis, 20, 3);
  expect(await publishingBreaches(database().pool)).toEqual([]);
});

test("with the claim replaced by read-then-write, the same test sees several builds, at the first publish and at a republish", async () => {
  const { pool, url } = wrong();
  await wrongClaim(pool);
  await switchSet(pool, "publishing", true);
  const server = await startApi(url, { publishing: publishingConfig(orchestrator.url) });
  try {
    await expect(oneBuildEach(pool, [server], 3, 1)).rejects.toThrow();
    const published = await project(pool);
    // One at a time, the wrong claim does no harm.
    await oneBuildEach(pool, [server], 1, 2, published);
    await expect(oneBuildEach(pool, [server], 3, 1, published)).rejects.toThrow();
    const { rows } = await pool.query<{ builds: number }>(
      "SELECT max(attempts)::integer AS builds FROM (SELECT count(*) AS attempts FROM publish_attempt GROUP BY deployment_id) AS counted",
    );
    expect(rows[0]?.builds).toBeGreaterThan(3);
  } finally {
    await server.close();
  }
});

// ---------------------------------------------------------------- staged interleavings

const CLAIM = `SELECT outcome, (d).id AS deployment_id, (d).attempt, taken_over
  FROM publish_claim(gen_random_uuid(), $1, NULL, $2, 'source', 'nobody', 300, 7200, 0)`;

/** Claims by hand; nobody carries it out. */
async function claimed(on: pg.Pool | pg.ClientBase, id: string, name = slug()) {
  const { rows } = await on.query<{
    outcome: string;
    deployment_id: string;
    attempt: number;
    taken_over: number | null;
  }>(CLAIM, [id, name]);
  return rows[0] as (typeof rows)[0];
}

/** Two sessions; both are ended, whatever happens. */
async function sessions(work: (one: pg.Client, two: pg.Client) => Promise<void>): Promise<void> {
  const [one, two] = [await database().connect(), await database().connect()];
  try {
    await work(one, two);
  } finally {
    await one.end();
    await two.end();
  }
}

const pidOf = (client: pg.Client) => (client as unknown as { processID: number }).processID;

test("a first publish that is not committed yet: the project's own second one is in progress, never a taken name", async () => {
  const id = await project(database().pool);
  const name = slug();
  await sessions(async (one, two) => {
    await one.query("BEGIN");
    expect((await claimed(one, id, name)).outcome).toBe("claimed");
    const second = claimed(two, id, name);
    await waitUntilBlocked(database().pool, pidOf(two));
    await one.query("COMMIT");
    expect(await second).toMatchObject({ outcome: "in_progress", attempt: 1 });
  });
});

test("a first publish that is not committed yet: another project's of the same name is SlugTaken once it commits, and wins if it does not", async () => {
  const { pool } = database();
  for (const [end, outcome] of [
    ["COMMIT", "slug_taken"],
    ["ROLLBACK", "claimed"],
  ] as const) {
    const [mine, theirs] = [await project(pool), await project(pool)];
    const name = slug();
    await sessions(async (one, two) => {
      await one.query("BEGIN");
      await claimed(one, theirs, name);
      const second = claimed(two, mine, name);
      await waitUntilBlocked(pool, pidOf(two));
      await one.query(end);
      expect((await second).outcome).toBe(outcome);
    });
    const { rows } = await pool.query("SELECT count(*)::integer AS owners FROM app_slug WHERE slug = $1", [
      name,
    ]);
    expect(rows).toEqual([{ owners: 1 }]);
  }
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("12 projects race for one name: one has it, eleven are told that it is taken", async () => {
  const { pool } = database();
  const name = slug();
  const ids = await Promise.all(Array.from({ length: 12 }, () => project(pool)));
  const results = await Promise.all(
    ids.map((id, at) => ask(apis, at, id, at % 2 === 0 ? name : name.toUpperCase())),
  );
  expect(started(results)).toHaveLength(1);
  expect(results.filter((result) => result.__typename === "SlugTaken")).toHaveLength(11);
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("two apps that trade names: both are refused at once, and neither waits for the other", async () => {
  const { pool } = database();
  const [one, two] = [await project(pool), await project(pool)];
  const [left, right] = [slug(), slug()];
  const first = await claimed(pool, one, left);
  const second = await claimed(pool, two, right);
  for (const { deployment_id } of [first, second]) {
    await pool.query("SELECT publish_finish_if_owned($1, 1, 'live', NULL, 'https://a.test', 'm', false)", [
      deployment_id,
    ]);
  }
  const traded = await Promise.all([claimed(pool, one, right), claimed(pool, two, left)]);
  expect(traded.map(({ outcome }) => outcome)).toEqual(["slug_taken", "slug_taken"]);
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("a beat ten minutes old is taken over; a build of an hour with a fresh beat is not; a build over the limit is, however fresh its beat", async () => {
  const { pool } = database();
  const cases = [
    [
      "heartbeat_at = clock_timestamp() - interval '10 minutes', claimed_at = clock_timestamp() - interval '11 minutes'",
      "PublishStarted",
    ],
    [
      "heartbeat_at = clock_timestamp() - interval '4 minutes', claimed_at = clock_timestamp() - interval '1 hour'",
      "PublishInProgress",
    ],
    [
      "heartbeat_at = clock_timestamp(), claimed_at = clock_timestamp() - interval '1 hour'",
      "PublishInProgress",
    ],
    [
      "heartbeat_at = clock_timestamp(), claimed_at = clock_timestamp() - interval '121 minutes'",
      "PublishStarted",
    ],
  ] as const;
  for (const [age, outcome] of cases) {
    const id = await project(pool);
    const name = slug();
    const { deployment_id } = await claimed(pool, id, name);
    await pool.query(`UPDATE deployment SET ${age} WHERE id = $1`, [deployment_id]);
    const result = await ask(apis, 0, id, name);
    expect(result.__typename, age).toBe(outcome);
    const { rows } = await pool.query(
      "SELECT number, state FROM publish_attempt WHERE deployment_id = $1 AND number = 1",
      [deployment_id],
    );
    expect(rows).toEqual([{ number: 1, state: outcome === "PublishStarted" ? "abandoned" : "building" }]);
  }
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("20 publishes of a project whose owner is silent: one takes it over", async () => {
  const { pool } = database();
  const id = await project(pool);
  const name = slug();
  const { deployment_id } = await claimed(pool, id, name);
  await pool.query(
    "UPDATE deployment SET heartbeat_at = clock_timestamp() - interval '10 minutes' WHERE id = $1",
    [deployment_id],
  );
  const results = await publishes(apis, 20, id, name, "https://git.test/app?simulate=never");
  expect(started(results).map(({ attempt }) => attempt)).toEqual([2]);
  expect(running(results)).toHaveLength(19);
  await (apis[0] as TestApi).run(CancelPublishDocument, {
    input: { deploymentId: globalIdEncode("Deployment", deployment_id), attempt: 2 },
  });
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("a beat that commits while a take-over waits for the row keeps the claim", async () => {
  const { pool } = database();
  const id = await project(pool);
  const { deployment_id } = await claimed(pool, id);
  await pool.query(
    "UPDATE deployment SET heartbeat_at = clock_timestamp() - interval '10 minutes' WHERE id = $1",
    [deployment_id],
  );
  await sessions(async (owner, taker) => {
    await owner.query("BEGIN");
    await owner.query("SELECT publish_beat_if_owned($1, 1)", [deployment_id]);
    const taken = claimed(taker, id);
    await waitUntilBlocked(pool, pidOf(taker));
    await owner.query("COMMIT");
    expect(await taken).toMatchObject({ outcome: "in_progress", attempt: 1 });
  });
});

test("a superseded owner writes nothing: no beat, no question, no progress, no end, of any kind", async () => {
  const { pool } = database();
  const id = await project(pool);
  const { deployment_id } = await claimed(pool, id);
  await pool.query(
    "UPDATE deployment SET heartbeat_at = clock_timestamp() - interval '10 minutes' WHERE id = $1",
    [deployment_id],
  );
  expect(await claimed(pool, id)).toMatchObject({ outcome: "claimed", attempt: 2, taken_over: 1 });
  const everything = async () => [
    (await pool.query("SELECT * FROM deployment WHERE id = $1", [deployment_id])).rows,
    (
      await pool.query("SELECT * FROM publish_attempt WHERE deployment_id = $1 ORDER BY number", [
        deployment_id,
      ])
    ).rows,
    (
      await pool.query("SELECT * FROM deployment_event WHERE deployment_id = $1 ORDER BY sequence", [
        deployment_id,
      ])
    ).rows,
  ];
  const before = await everything();
  for (const call of [
    "publish_beat_if_owned($1, 1)",
    "publish_ask_if_owned($1, 1, 'http://o.test')",
    "publish_progress_if_owned($1, 1, 'build', 'late')",
    "publish_finish_if_owned($1, 1, 'live', NULL, 'https://late.test', 'late', false)",
    "publish_finish_if_owned($1, 1, 'failed', 'late', NULL, 'late', true)",
    "publish_finish_if_owned($1, 1, 'abandoned', 'late', NULL, 'late', true)",
    "publish_abandon_if_stale($1, 1, 0, 0)",
  ]) {
    const { rows } = await pool.query(`SELECT ${call} AS wrote`, [deployment_id]);
    expect(rows, call).toEqual([{ wrote: false }]);
  }
  const { rows } = await pool.query("SELECT publish_cancel($1, NULL, 1) AS outcome", [deployment_id]);
  expect(rows).toEqual([{ outcome: "not_running" }]);
  expect(await everything()).toEqual(before);
});

test("cancelling and finishing at once: one of the two ends the attempt, in each of 30 rounds", async () => {
  const { pool } = database();
  const outcomes = new Set<string>();
  for (let round = 0; round < 30; round++) {
    const { deployment_id } = await claimed(pool, await project(pool));
    await sessions(async (owner, customer) => {
      const meet = barrier(2);
      const [finished, cancelled] = await Promise.all([
        meet().then(() =>
          owner.query<{ done: boolean }>(
            "SELECT publish_finish_if_owned($1, 1, 'live', NULL, 'https://a.test', 'm', false) AS done",
            [deployment_id],
          ),
        ),
        meet().then(() =>
          customer.query<{ outcome: string }>("SELECT publish_cancel($1, NULL, 1) AS outcome", [
            deployment_id,
          ]),
        ),
      ]);
      const won = [finished.rows[0]?.done, cancelled.rows[0]?.outcome === "cancelled"];
      expect(won.filter(Boolean)).toHaveLength(1);
      const { rows } = await pool.query<{ state: string }>("SELECT state FROM deployment WHERE id = $1", [
        deployment_id,
      ]);
      expect(rows[0]?.state).toBe(won[0] ? "live" : "cancelled");
      outcomes.add(String(rows[0]?.state));
    });
  }
  expect(await publishingBreaches(pool)).toEqual([]);
});

// ---------------------------------------------------------------- cleaning

const log = logOpen("silent");
const open = (url: string) =>
  databaseOpen(url, { poolSize: 4, namedStatements: true, onError: () => undefined });
const rhythm = { claimTimeoutSeconds: 300, buildLimitSeconds: 7200 };

test("several reapers end each dead owner's attempt once; those that beat are left alone", async () => {
  const { pool, url } = database();
  await pool.query(
    "UPDATE deployment SET heartbeat_at = clock_timestamp(), claimed_at = clock_timestamp() WHERE state = 'building'",
  );
  const dead: string[] = [];
  for (let index = 0; index < 20; index++)
    dead.push((await claimed(pool, await project(pool))).deployment_id);
  const alive = (await claimed(pool, await project(pool))).deployment_id;
  await pool.query(
    "UPDATE deployment SET heartbeat_at = clock_timestamp() - interval '301 seconds' WHERE id = ANY($1)",
    [dead],
  );
  const workers = Array.from({ length: 3 }, () => open(url));
  try {
    const counts = await Promise.all(workers.map(({ db }) => staleAbandon(db, rhythm, log)));
    expect(counts.reduce((sum, count) => sum + count, 0)).toBe(20);
  } finally {
    for (const worker of workers) await worker.close();
  }
  const { rows } = await pool.query(
    `SELECT d.state, a.state AS attempt, d.error IS NOT NULL AND d.error = a.error AS told,
            count(e.*) FILTER (WHERE e.state = 'failed')::integer AS events, count(DISTINCT d.id)::integer AS deployments
     FROM deployment d JOIN publish_attempt a ON a.deployment_id = d.id JOIN deployment_event e ON e.deployment_id = d.id
     WHERE d.id = ANY($1) GROUP BY 1, 2, 3`,
    [dead],
  );
  expect(rows).toEqual([{ state: "failed", attempt: "abandoned", told: true, events: 20, deployments: 20 }]);
  const { rows: left } = await pool.query("SELECT state FROM deployment WHERE id = $1", [alive]);
  expect(left).toEqual([{ state: "building" }]);
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("a beat between the reaper's read and its write keeps the claim; a row that somebody has locked is passed over", async () => {
  const { pool } = database();
  const { deployment_id } = await claimed(pool, await project(pool));
  const abandon = async () =>
    (await pool.query("SELECT publish_abandon_if_stale($1, 1, 300, 7200) AS done", [deployment_id])).rows[0]
      ?.done as boolean;
  expect(await abandon(), "it beats").toBe(false);
  await pool.query(
    "UPDATE deployment SET heartbeat_at = clock_timestamp() - interval '10 minutes' WHERE id = $1",
    [deployment_id],
  );
  await sessions(async (owner) => {
    await owner.query("BEGIN");
    await owner.query("SELECT FROM deployment WHERE id = $1 FOR UPDATE", [deployment_id]);
    expect(await abandon(), "its owner is writing").toBe(false);
    await owner.query("ROLLBACK");
  });
  expect(await abandon(), "it is silent").toBe(true);
  expect(await abandon(), "it is over").toBe(false);
});

// ---------------------------------------------------------------- what the database alone refuses

async function refusedBy(
  constraint: string,
  on: TestDatabase,
  sql: string,
  values: unknown[],
): Promise<void> {
  await expect(on.pool.query(sql, values), sql).rejects.toMatchObject({ constraint });
}

test("deployment_one_per_project, publish_attempt_number, publish_attempt_one_building, publish_attempt_one_live", async () => {
  const { pool } = database();
  const id = await project(pool);
  const { deployment_id } = await claimed(pool, id);
  await refusedBy(
    "deployment_one_per_project",
    database(),
    "INSERT INTO deployment (project_id, slug, state, attempt, claimed_at, heartbeat_at) VALUES ($1, $2, 'building', 1, now(), now())",
    [id, slug()],
  );
  const attempt =
    "INSERT INTO publish_attempt (deployment_id, number, state, slug, source, owner, finished_at) VALUES ($1, $2, $3, 's', 's', 'o', $4)";
  await refusedBy("publish_attempt_number", database(), attempt, [deployment_id, 1, "failed", new Date()]);
  await refusedBy("publish_attempt_one_building", database(), attempt, [deployment_id, 2, "building", null]);
  await pool.query("SELECT publish_finish_if_owned($1, 1, 'live', NULL, 'https://a.test', 'm', false)", [
    deployment_id,
  ]);
  await refusedBy("publish_attempt_one_live", database(), attempt, [deployment_id, 2, "live", new Date()]);
});

test("app_slug_names_one_app: two deployments, one name, in raw SQL, also as a live name", async () => {
  const { pool } = database();
  const name = slug();
  const { deployment_id } = await claimed(pool, await project(pool), name);
  const other = (await claimed(pool, await project(pool))).deployment_id;
  await refusedBy("app_slug_names_one_app", database(), "UPDATE deployment SET slug = $2 WHERE id = $1", [
    other,
    name,
  ]);
  await refusedBy(
    "app_slug_names_one_app",
    database(),
    "UPDATE deployment SET state = 'failed', live_attempt = 1, live_slug = $2 WHERE id = $1",
    [other, name],
  );
  await pool.query("SELECT publish_cancel($1, NULL, 1)", [deployment_id]);
});

test("deployment_attempt_ends_once, deployment_numbers_grow: a late finish that forgets the fence is refused", async () => {
  const { pool } = database();
  const { deployment_id } = await claimed(pool, await project(pool));
  await pool.query("SELECT publish_cancel($1, NULL, 1)", [deployment_id]);
  for (const set of [
    "state = 'failed'",
    "state = 'building'",
    "state = 'live', live_attempt = 1, live_slug = slug",
  ]) {
    await refusedBy(
      "deployment_attempt_ends_once",
      database(),
      `UPDATE deployment SET ${set} WHERE id = $1`,
      [deployment_id],
    );
  }
  await refusedBy(
    "deployment_attempt_ends_once",
    database(),
    "UPDATE deployment SET attempt = 2 WHERE id = $1",
    [deployment_id],
  );
  for (const set of [
    "attempt = 3, state = 'building'",
    "sequence = sequence + 2",
    "sequence = sequence - 1",
    "project_id = gen_random_uuid()",
  ]) {
    await refusedBy("deployment_numbers_grow", database(), `UPDATE deployment SET ${set} WHERE id = $1`, [
      deployment_id,
    ]);
  }
  await refusedBy("deployment_is_kept", database(), "DELETE FROM deployment WHERE id = $1", [deployment_id]);
  await refusedBy(
    "publish_attempt_is_kept",
    database(),
    "DELETE FROM publish_attempt WHERE deployment_id = $1",
    [deployment_id],
  );
  await refusedBy(
    "deployment_event_is_final",
    database(),
    "UPDATE deployment_event SET message = 'other' WHERE deployment_id = $1",
    [deployment_id],
  );
  await refusedBy(
    "deployment_event_is_final",
    database(),
    "DELETE FROM deployment_event WHERE deployment_id = $1",
    [deployment_id],
  );
});

test("app_slug_is_derived: nobody takes a live slug away, or gives one, past the deployments", async () => {
  const { pool } = database();
  const name = slug();
  const { deployment_id } = await claimed(pool, await project(pool), name);
  for (const [sql, values] of [
    ["DELETE FROM app_slug WHERE slug = $1", [name]],
    ["UPDATE app_slug SET slug = 'other' WHERE slug = $1", [name]],
    ["INSERT INTO app_slug VALUES ($1, $2)", [slug(), deployment_id]],
    ["TRUNCATE app_slug", []],
  ] as const) {
    await refusedBy("app_slug_is_derived", database(), sql, [...values]);
  }
});

test("deployment_is_told, deployment_event_is_counted: no change without its attempt and its event, no event out of its turn", async () => {
  const { pool } = database();
  const { deployment_id } = await claimed(pool, await project(pool));
  for (const set of [
    "state = 'cancelled'",
    "state = 'live', live_attempt = attempt, live_slug = slug",
    "attempt = attempt + 1, claimed_at = clock_timestamp()",
    "sequence = sequence + 1",
  ]) {
    await refusedBy("deployment_is_told", database(), `UPDATE deployment SET ${set} WHERE id = $1`, [
      deployment_id,
    ]);
  }
  await refusedBy(
    "deployment_event_is_counted",
    database(),
    "INSERT INTO deployment_event (deployment_id, sequence, message, slug, state, attempt) VALUES ($1, 500, 'm', 's', 'building', 1)",
    [deployment_id],
  );
  await refusedBy("deployment_event_is_final", database(), "TRUNCATE deployment_event", []);
});

test("a dead owner's attempt to rename its app keeps nobody from the name, and its live name stays its own", async () => {
  const { pool } = database();
  const [live, wanted] = [slug(), slug()];
  const id = await project(pool);
  const { deployment_id } = await claimed(pool, id, live);
  await pool.query("SELECT publish_finish_if_owned($1, 1, 'live', NULL, 'https://a.test', 'm', false)", [
    deployment_id,
  ]);
  await claimed(pool, id, wanted);
  const other = await project(pool);
  expect((await claimed(pool, other, wanted)).outcome, "its owner lives").toBe("slug_taken");
  await pool.query(
    "UPDATE deployment SET heartbeat_at = clock_timestamp() - interval '10 minutes' WHERE id = $1",
    [deployment_id],
  );
  expect((await claimed(pool, other, live)).outcome, "it is live").toBe("slug_taken");
  expect((await claimed(pool, other, wanted)).outcome).toBe("claimed");
  expect(await publishingBreaches(pool)).toEqual([]);
});

test.each(
  ATTEMPT_STATES.flatMap((from) => ATTEMPT_STATES.filter((to) => to !== from).map((to) => ({ from, to }))),
)("an attempt moves from $from to $to exactly as the table says", async ({ from, to }) => {
  const { pool } = database();
  const { deployment_id } = await claimed(pool, await project(pool));
  const move = (state: string) =>
    pool.query(
      "UPDATE publish_attempt SET state = $2, finished_at = CASE WHEN $2 = 'building' THEN NULL ELSE coalesce(finished_at, now()) END WHERE deployment_id = $1",
      [deployment_id, state],
    );
  if (from === "superseded") await move("live");
  if (from !== "building") await move(from);
  const allowed: readonly string[] = ATTEMPT_TRANSITIONS[from];
  if (allowed.includes(to)) await move(to);
  else await expect(move(to)).rejects.toMatchObject({ constraint: "publish_attempt_ends_once" });
});
