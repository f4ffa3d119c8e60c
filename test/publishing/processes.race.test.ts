import { print } from "graphql";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import { nginxInstalled, nginxStart } from "../support/nginx.ts";
import { PublishAppDocument } from "../support/operations.ts";
import { type HoldfastProcess, holdfast, stopAll } from "../support/process.ts";
import {
  buildKnown,
  buildsOf,
  follow,
  project,
  publish,
  publishingBreaches,
  slug,
  uuidOf,
} from "../support/publishing.ts";
import { machine, order, organizations, switchSet } from "../support/world.ts";

// Publishing as processes: servers that are stopped, killed, restarted and have wrong clocks, a build service
// beside them, a proxy in front. They run side by side, since most of it is waiting.

const database = useTestDatabase();
/** Where a worker with a short patience cleans up. */
const other = useTestDatabase();
const TOKEN = "publishing-process-token";
let orchestrator: string;

beforeAll(async () => {
  const service = holdfast(["orchestrator", "--port", "0", "--build-seconds", "2"], {
    HOLDFAST_APP_DOMAIN: "apps.test",
  });
  orchestrator = (await service.wrote(/build service is at (\S+)/))[1] as string;
  const { pool } = database();
  await switchSet(pool, "publishing", true);
  await switchSet(pool, "datacenter", true);
  await switchSet(other().pool, "publishing", true);
  // Stops the writers of a slug's first attempt in the middle of a write, for as long as a test has the lock.
  await pool.query(`
    CREATE TABLE stage (slug text, col text, lock bigint);
    CREATE FUNCTION staged() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE v_lock bigint;
    BEGIN
      IF NEW.number = 1 THEN
        SELECT lock INTO v_lock FROM stage WHERE slug = NEW.slug AND col = TG_ARGV[0];
        IF FOUND THEN PERFORM pg_advisory_xact_lock(v_lock); END IF;
      END IF;
      RETURN NEW;
    END $$;
    CREATE TRIGGER staged_asked BEFORE UPDATE OF build_asked_at ON publish_attempt FOR EACH ROW EXECUTE FUNCTION staged('build_asked_at');
    CREATE TRIGGER staged_id BEFORE UPDATE OF build_id ON publish_attempt FOR EACH ROW EXECUTE FUNCTION staged('build_id');
    CREATE TRIGGER staged_finish BEFORE UPDATE OF finished_at ON publish_attempt FOR EACH ROW EXECUTE FUNCTION staged('finished_at');`);
});
afterAll(stopAll);

/** All processes on one database agree on these: long enough for a busy machine, short enough to wait for. */
const RHYTHM = { HOLDFAST_HEARTBEAT_SECONDS: "1", HOLDFAST_CLAIM_TIMEOUT_SECONDS: "8" };

interface Server extends HoldfastProcess {
  readonly url: string;
}

async function server(environment: Record<string, string> = {}): Promise<Server> {
  const started = holdfast([], {
    DATABASE_URL: database().url,
    DATABASE_POOL_SIZE: "5",
    HOLDFAST_OPERATOR_TOKEN: TOKEN,
    HOLDFAST_SWEEP_SECONDS: "0",
    ORCHESTRATOR_URL: orchestrator,
    ...RHYTHM,
    ...environment,
  });
  return { ...started, url: await started.served() };
}

async function send(url: string, query: string, variables: unknown) {
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${TOKEN}` },
    body: JSON.stringify({ query, variables }),
  });
  return (await response.json()) as { data?: Record<string, Record<string, unknown>>; errors?: unknown };
}

interface Published {
  readonly __typename: string;
  readonly attempt: number;
  readonly deployment: { readonly id: string };
}

async function ask(on: Server, id: string, name: string, knob?: string): Promise<Published> {
  const source = `https://git.test/app${knob === undefined ? "" : `?simulate=${knob}`}`;
  const { data, errors } = await send(on.url, print(PublishAppDocument), publish(id, name, source));
  expect(errors).toBeUndefined();
  return data?.["publishApp"] as unknown as Published;
}

/** Publishes until the claim is had: what stands in the way may have to time out first. */
async function askUntilStarted(on: Server, id: string, name: string, knob?: string): Promise<Published> {
  let last: Published | undefined;
  await waitUntil(async () => {
    last = await ask(on, id, name, knob);
    return last.__typename === "PublishStarted";
  }, "the publish starts");
  return last as Published;
}

interface State {
  readonly state: string;
  readonly attempt: number;
  readonly live: number | null;
  readonly error: string | null;
}

async function stateOf(deployment: string): Promise<State> {
  const { rows } = await database().pool.query<State>(
    "SELECT state, attempt, live_attempt AS live, error FROM deployment WHERE id = $1",
    [uuidOf(deployment)],
  );
  return rows[0] as State;
}

async function attemptsOf(deployment: string): Promise<string[]> {
  const { rows } = await database().pool.query<{ state: string }>(
    "SELECT state FROM publish_attempt WHERE deployment_id = $1 ORDER BY number",
    [uuidOf(deployment)],
  );
  return rows.map((row) => row.state);
}

const over = (deployment: string) =>
  waitUntil(async () => (await stateOf(deployment)).state !== "building", "the attempt is over");

/** No build of it goes on, but that of the attempt which is live. */
const noOrphan = (deployment: string) =>
  waitUntil(
    async () =>
      (await buildsOf(orchestrator, deployment)).every((build) =>
        ["succeeded", "failed"].includes(build.state),
      ),
    "no build goes on",
  );

describe.concurrent("publishing processes", () => {
  test("a server stopped past the time-out: another takes over and finishes; the first wakes, and nothing that it does counts", async () => {
    const [a, b] = await Promise.all([server(), server()]);
    const [id, name] = [await project(database().pool), slug()];
    const first = await ask(a, id, name, "deaf");
    const deployment = first.deployment.id;
    await buildKnown(database().pool, deployment);
    a.child.kill("SIGSTOP");
    const second = await askUntilStarted(b, id, name);
    expect(second.attempt).toBe(2);
    await over(deployment);
    await waitUntil(
      async () => (await buildsOf(orchestrator, deployment)).every((build) => build.state === "succeeded"),
      "the first one's build has succeeded as well",
    );
    const before = await buildsOf(orchestrator, deployment);
    const events = await database().pool.query("SELECT * FROM deployment_event WHERE deployment_id = $1", [
      uuidOf(deployment),
    ]);
    a.child.kill("SIGCONT");
    await a.wrote(/claim lost/);
    expect(await stateOf(deployment)).toEqual({ state: "live", attempt: 2, live: 2, error: null });
    expect(await attemptsOf(deployment)).toEqual(["abandoned", "live"]);
    expect(await buildsOf(orchestrator, deployment), "it asks the build service for nothing").toEqual(before);
    expect(before.map((build) => [build.attempt, build.posts, build.deletes])).toEqual([
      [1, 1, 1],
      [2, 1, 0],
    ]);
    const after = await database().pool.query("SELECT * FROM deployment_event WHERE deployment_id = $1", [
      uuidOf(deployment),
    ]);
    expect(after.rows).toEqual(events.rows);
    // It is as good as any other again.
    expect((await ask(a, id, name)).attempt).toBe(3);
    await over(deployment);
    expect((await stateOf(deployment)).live).toBe(3);
  });

  test.each([
    ["after the claim", "build_asked_at", 0],
    ["after the build was asked for", "build_id", 1],
    ["before the finish", "finished_at", 1],
  ] as const)(
    "kill -9 %s: a later publish works, one version is live, no build is left running",
    async (phase, column, builds) => {
      const { pool } = database();
      const [a, b] = await Promise.all([server(), server()]);
      const [id, name] = [await project(pool), slug()];
      const lock = 7_000_000 + column.length;
      const keeper = await database().connect();
      await keeper.query("SELECT pg_advisory_lock($1)", [lock]);
      await pool.query("INSERT INTO stage VALUES ($1, $2, $3)", [name, column, lock]);
      const waiting = async () =>
        (
          await pool.query<{ pid: number }>(
            "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = $1",
            [lock],
          )
        ).rows;
      try {
        // A build that is asked for and not finished goes on for ever, unless somebody stops it.
        const first = await ask(a, id, name, column === "finished_at" ? undefined : "never");
        const deployment = first.deployment.id;
        await waitUntil(async () => (await waiting()).length > 0, `the process is ${phase}`);
        a.child.kill("SIGKILL");
        await a.ended();
        for (const { pid } of await waiting()) await pool.query("SELECT pg_terminate_backend($1)", [pid]);
        await pool.query("DELETE FROM stage WHERE slug = $1", [name]);
        expect((await buildsOf(orchestrator, deployment)).length).toBe(builds);
        const second = await askUntilStarted(b, id, name);
        await over(deployment);
        const { attempt } = second;
        expect(await stateOf(deployment)).toEqual({ state: "live", attempt, live: attempt, error: null });
        expect(await attemptsOf(deployment)).toEqual(["abandoned", "live"]);
        await noOrphan(deployment);
        const known = await buildsOf(orchestrator, deployment);
        if (column === "build_id") {
          expect(known.find((build) => build.attempt === 1)).toMatchObject({
            deletes: 1,
            state: "failed",
            error: "The build was stopped.",
          });
        }
        expect(known.find((build) => build.attempt === attempt)).toMatchObject({
          posts: 1,
          deletes: 0,
          state: "succeeded",
        });
      } finally {
        await keeper.end();
      }
    },
  );

  test("kill -9 and nobody publishes again: a worker process ends the attempt within the time-out, followers are told, and its build is stopped", async () => {
    // The server that is left would wait for an hour; it is the worker that cleans up.
    const elsewhere = { DATABASE_URL: other().url, HOLDFAST_CLAIM_TIMEOUT_SECONDS: "3600" };
    const [a, b] = await Promise.all([server(elsewhere), server(elsewhere)]);
    const first = await ask(a, await project(other().pool), slug(), "never");
    const deployment = first.deployment.id;
    await buildKnown(other().pool, deployment);
    const stream = await follow(b.url, TOKEN, { deploymentId: deployment });
    a.child.kill("SIGKILL");
    holdfast(["worker"], { DATABASE_URL: other().url, HOLDFAST_SWEEP_SECONDS: "0", ...RHYTHM });
    expect(await stream.ended).toBe(true);
    expect(stream.events().at(-1)?.deployment).toMatchObject({
      state: "FAILED",
      error: expect.stringContaining("stopped beating"),
    });
    await noOrphan(deployment);
    expect(await buildsOf(orchestrator, deployment)).toMatchObject([{ deletes: 1, state: "failed" }]);
    const { rows } = await other().pool.query("SELECT state FROM publish_attempt");
    expect(rows).toEqual([{ state: "abandoned" }]);
    expect(await publishingBreaches(other().pool)).toEqual([]);
  });

  test("SIGTERM: the publish is handed back at once, its build stopped, the process ends with 0, and another publishes without waiting", async () => {
    // Nobody can take it over within the life of this test.
    const [a, b] = await Promise.all([server(), server()]);
    const [id, name] = [await project(database().pool), slug()];
    const first = await ask(a, id, name, "never");
    const deployment = first.deployment.id;
    await buildKnown(database().pool, deployment);
    const stream = await follow(b.url, TOKEN, { deploymentId: deployment });
    a.child.kill("SIGTERM");
    expect(await a.ended()).toBe(0);
    expect(await stream.ended).toBe(true);
    expect(stream.events().at(-1)?.deployment).toMatchObject({
      state: "FAILED",
      error: expect.stringContaining("handed the publish back"),
    });
    expect(await buildsOf(orchestrator, deployment)).toMatchObject([{ deletes: 1, state: "failed" }]);
    expect(await ask(b, id, name)).toMatchObject({ __typename: "PublishStarted", attempt: 2 });
    await over(deployment);
    expect(await attemptsOf(deployment)).toEqual(["abandoned", "live"]);
  });

  test("a subscriber of process B sees everything that process A does", async () => {
    const [a, b] = await Promise.all([server(), server()]);
    const first = await ask(a, await project(database().pool), slug());
    const deploymentId = first.deployment.id;
    const stream = await follow(b.url, TOKEN, { deploymentId, afterSequence: 0 });
    expect(await stream.ended).toBe(true);
    const { rows } = await database().pool.query<{ sequence: number; message: string }>(
      "SELECT sequence, message FROM deployment_event WHERE deployment_id = $1 ORDER BY sequence",
      [uuidOf(deploymentId)],
    );
    expect(stream.events().map(({ sequence, message }) => ({ sequence, message }))).toEqual(rows);
    expect(stream.events().at(-1)?.deployment.state).toBe("LIVE");
  });

  test("process clocks twenty minutes apart: nothing is stolen, nothing expires early, and the last word is the database's", async () => {
    const { pool } = database();
    const shifted = (minutes: number) => ({
      NODE_OPTIONS: `--import=data:text/javascript,${encodeURIComponent(
        `const real = Date; const shift = ${minutes * 60_000};
         globalThis.Date = class extends real { constructor(...a) { if (a.length === 0) super(real.now() + shift); else super(...a); } static now() { return real.now() + shift; } };`,
      )}`,
      HOLDFAST_SWEEP_SECONDS: "1",
    });
    const [ahead, behind] = await Promise.all([server(shifted(10)), server(shifted(-10))]);
    const [id, name] = [await project(pool), slug()];
    const [acme] = (await organizations(pool, 1)) as [string];
    await machine(pool);
    const { data } = await send(
      ahead.url,
      "mutation ($input: ReserveMachineInput!) { reserveMachine(input: $input) { __typename } }",
      order(acme),
    );
    expect(data?.["reserveMachine"]).toEqual({ __typename: "MachineReserved" });
    const first = await ask(ahead, id, name, "slow");
    const deploymentId = first.deployment.id;
    const stream = await follow(behind.url, TOKEN, { deploymentId, afterSequence: 0 });
    await waitUntil(async () => {
      const { rows } = await pool.query<{ long: boolean }>(
        "SELECT clock_timestamp() > claimed_at + interval '12 seconds' AS long FROM deployment WHERE id = $1",
        [uuidOf(deploymentId)],
      );
      return rows[0]?.long as boolean;
    }, "more than the time-out is over");
    expect(await ask(behind, id, name)).toMatchObject({ __typename: "PublishInProgress", attempt: 1 });
    expect(await ask(ahead, id, name)).toMatchObject({ __typename: "PublishInProgress", attempt: 1 });
    const { rows } = await pool.query<{ right: boolean }>(
      `SELECT bool_and(at BETWEEN clock_timestamp() - interval '5 minutes' AND clock_timestamp()) AS right
       FROM (SELECT at FROM deployment_event WHERE deployment_id = $1
             UNION ALL SELECT heartbeat_at FROM deployment WHERE id = $1
             UNION ALL SELECT started_at FROM publish_attempt WHERE deployment_id = $1) AS instants`,
      [uuidOf(deploymentId)],
    );
    expect(rows).toEqual([{ right: true }]);
    await send(
      behind.url,
      "mutation ($input: CancelPublishInput!) { cancelPublish(input: $input) { __typename } }",
      {
        input: { deploymentId, attempt: 1 },
      },
    );
    expect(await stream.ended).toBe(true);
    expect(stream.events().at(-1)?.deployment.state).toBe("CANCELLED");
  });

  test.skipIf(!nginxInstalled())(
    "through nginx as it comes: events arrive at once, and three minutes of silence do not cut the stream",
    async () => {
      const { pool } = database();
      const origin = await server();
      const proxy = await nginxStart(origin.url);
      try {
        const first = await ask(origin, await project(pool), slug(), "never");
        const deploymentId = first.deployment.id;
        const stream = await follow(proxy.url, TOKEN, { deploymentId });
        await waitUntil(
          () => stream.events().some((event) => event.message === "Starting the app (simulated)."),
          "the build has said its last word",
        );
        const { rows } = await pool.query<{ at: Date }>("SELECT clock_timestamp() AS at");
        const told = stream.events().length;
        await waitUntil(
          async () => {
            const { rows: now } = await pool.query<{ over: boolean }>(
              "SELECT clock_timestamp() >= $1::timestamptz + interval '3 minutes' AS over",
              [rows[0]?.at],
            );
            return now[0]?.over as boolean;
          },
          "three minutes are over",
          200_000,
        );
        expect(stream.events().length, "it was silent").toBe(told);
        expect(stream.pings()).toBeGreaterThanOrEqual(10);
        const pings = stream.pings();
        await pool.query("SELECT publish_progress_if_owned($1, 1, NULL, 'after the silence')", [
          uuidOf(deploymentId),
        ]);
        await waitUntil(() => stream.events().at(-1)?.message === "after the silence", "the event arrives");
        expect(stream.pings(), "it did not wait for more to fill a buffer").toBeLessThanOrEqual(pings + 1);
        await send(
          proxy.url,
          "mutation ($input: CancelPublishInput!) { cancelPublish(input: $input) { __typename } }",
          {
            input: { deploymentId, attempt: 1 },
          },
        );
        expect(await stream.ended).toBe(true);
      } finally {
        await proxy.stop();
      }
    },
    400_000,
  );
});

test("and after all of it, in SQL", async () => {
  expect(await publishingBreaches(database().pool)).toEqual([]);
});
