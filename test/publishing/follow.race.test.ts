import { print } from "graphql";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { orchestratorStart, type SimulatedOrchestrator } from "../../src/orchestrator/simulated.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import {
  CancelPublishDocument,
  DeploymentEventsDocument,
  PublishAppDocument,
} from "../support/operations.ts";
import {
  buildKnown,
  follow,
  project,
  publish,
  publishingConfig,
  type Stream,
  slug,
  uuidOf,
} from "../support/publishing.ts";
import { wireOpen } from "../support/wire.ts";
import { organizations, switchSet } from "../support/world.ts";

// Following over real connections. Tests that wait for the product's own patience run side by side.

const database = useTestDatabase();
let orchestrator: SimulatedOrchestrator;
/** Writes. */
let a: TestApi;
/** Follows. */
let b: TestApi;

beforeAll(async () => {
  orchestrator = await orchestratorStart({
    host: "127.0.0.1",
    port: 0,
    buildSeconds: 0.8,
    appDomain: "apps.test",
  });
  a = await startApi(database().url, { publishing: publishingConfig(orchestrator.url) });
  b = await startApi(database().url, { publishing: publishingConfig(orchestrator.url) });
  await switchSet(database().pool, "publishing", true);
});
afterAll(async () => {
  await a.close();
  await b.close();
  await orchestrator.close();
});

async function start(knob: string | null = null, id?: string): Promise<string> {
  const { publishApp } = await a.run(
    PublishAppDocument,
    publish(
      id ?? (await project(database().pool)),
      slug(),
      `https://git.test/app${knob === null ? "" : `?simulate=${knob}`}`,
    ),
  );
  if (publishApp?.__typename !== "PublishStarted")
    throw new Error(`expected a start, got ${JSON.stringify(publishApp)}`);
  return publishApp.deployment.id;
}

/** Publishes a project whose owner lives, as if it did not: it may beat in between, and is silenced again. */
async function takeOver(id: string): Promise<void> {
  await waitUntil(async () => {
    await database().pool.query(
      "UPDATE deployment SET heartbeat_at = clock_timestamp() - interval '10 minutes' WHERE project_id = $1",
      [id],
    );
    const { publishApp } = await a.run(PublishAppDocument, publish(id, slug()));
    return publishApp?.__typename === "PublishStarted";
  }, "it is taken over");
}

const cancel = (deploymentId: string, attempt = 1) =>
  a.run(CancelPublishDocument, { input: { deploymentId, attempt } });
const sequences = (stream: Stream) => stream.events().map((event) => event.sequence);
const numbers = (from: number, to: number) =>
  Array.from({ length: to - from + 1 }, (_, index) => from + index);

/** A change that is written by hand, as any process could. */
async function tell(deploymentId: string, message: string): Promise<void> {
  const { rows } = await database().pool.query<{ wrote: boolean }>(
    "SELECT publish_progress_if_owned(id, attempt, NULL, $2) AS wrote FROM deployment WHERE id = $1",
    [uuidOf(deploymentId), message],
  );
  expect(rows).toEqual([{ wrote: true }]);
}

test("a subscriber of another server sees every change in order, without a gap, each with the deployment as it was then, and the stream completes with the attempt", async () => {
  const deploymentId = await start();
  const stream = await follow(b.url, b.operator, { deploymentId });
  expect(stream.status).toBe(200);
  expect(stream.headers.get("content-type")).toContain("text/event-stream");
  expect(stream.headers.get("x-accel-buffering")).toBe("no");
  expect(await stream.ended).toBe(true);
  const events = stream.events();
  expect(sequences(stream)).toEqual(
    numbers(events[0]?.sequence as number, events.at(-1)?.sequence as number),
  );
  expect(events.length).toBeGreaterThan(3);
  const states = events.map((event) => event.deployment.state);
  expect(new Set(states.slice(0, -1))).toEqual(new Set(["BUILDING"]));
  expect(events.at(-1)).toMatchObject({
    message: expect.stringContaining("is live at https://"),
    deployment: { id: deploymentId, state: "LIVE", liveAttempt: 1, error: null },
  });
  expect(events.every((event) => event.deployment.sequence === event.sequence)).toBe(true);
  expect(b.hub.followers()).toBe(0);
});

test("without afterSequence the first event is the present state; with it, whatever came after, each once", async () => {
  const deploymentId = await start("never");
  await waitUntil(
    async () =>
      (
        await database().pool.query(
          "SELECT FROM publish_attempt a JOIN deployment d ON d.id = a.deployment_id WHERE d.id = $1 AND build_id IS NOT NULL",
          [uuidOf(deploymentId)],
        )
      ).rows.length === 1,
    "the build began",
  );
  await tell(deploymentId, "one more line");
  const { rows } = await database().pool.query<{ sequence: number }>(
    "SELECT sequence FROM deployment WHERE id = $1",
    [uuidOf(deploymentId)],
  );
  const present = rows[0]?.sequence as number;
  const fresh = await follow(b.url, b.operator, { deploymentId });
  const resumed = await follow(b.url, b.operator, { deploymentId, afterSequence: 1 });
  const whole = await follow(b.url, b.operator, { deploymentId, afterSequence: 0 });
  await waitUntil(
    () => fresh.events().length > 0 && whole.events().length >= present,
    "the streams have begun",
  );
  expect(fresh.events()[0]?.sequence).toBeGreaterThanOrEqual(present);
  await cancel(deploymentId);
  for (const stream of [fresh, resumed, whole]) expect(await stream.ended).toBe(true);
  const last = whole.events().at(-1)?.sequence as number;
  expect(sequences(whole)).toEqual(numbers(1, last));
  expect(whole.events().map((event) => event.message)).toEqual(
    expect.arrayContaining([
      "Attempt 1 has begun.",
      "The build service has taken the build.",
      "one more line",
      "Attempt 1 was cancelled.",
    ]),
  );
  expect(sequences(resumed)).toEqual(numbers(2, last));
  expect(sequences(fresh)).toEqual(numbers(fresh.events()[0]?.sequence as number, last));
  for (const stream of [fresh, resumed, whole]) {
    expect(stream.events().at(-1)?.deployment.state).toBe("CANCELLED");
  }
});

test("an attempt that is over: its end is told and the stream completes; who has seen it gets no event; who has not, what he missed", async () => {
  const deploymentId = await start("never");
  await cancel(deploymentId);
  const { rows } = await database().pool.query<{ sequence: number }>(
    "SELECT sequence FROM deployment WHERE id = $1",
    [uuidOf(deploymentId)],
  );
  const last = rows[0]?.sequence as number;
  for (const [afterSequence, expected] of [
    [null, [last]],
    [last, []],
    [last + 5, []],
    [last - 1, [last]],
    [0, numbers(1, last)],
  ] as const) {
    const stream = await follow(b.url, b.operator, { deploymentId, afterSequence });
    expect(await stream.ended).toBe(true);
    expect(sequences(stream), String(afterSequence)).toEqual(expected);
    expect(stream.results.every((result) => result.errors === undefined)).toBe(true);
  }
});

test("a take-over: the end of the dead attempt is told, and the new one is followed to its end", async () => {
  const id = await project(database().pool);
  const deploymentId = await start("never", id);
  const stream = await follow(b.url, b.operator, { deploymentId });
  await waitUntil(() => stream.events().length > 0, "the stream has begun");
  await takeOver(id);
  expect(await stream.ended).toBe(true);
  const seen = stream.events().map((event) => `${event.deployment.attempt} ${event.deployment.state}`);
  expect([...new Set(seen)]).toEqual(["1 BUILDING", "1 FAILED", "2 BUILDING", "2 LIVE"]);
  expect(stream.events().find((event) => event.deployment.state === "FAILED")?.deployment.error).toContain(
    "stopped beating",
  );
  expect(sequences(stream)).toEqual(
    numbers(sequences(stream)[0] as number, sequences(stream).at(-1) as number),
  );
});

test("who may not follow is refused at once: no token, another role, another organization's, unknown, beyond the last change", async () => {
  const { pool } = database();
  const [mine, theirs] = (await organizations(pool, 2)) as [string, string];
  const deploymentId = await start("never", await project(pool, theirs));
  const tenant = await b.token("tenant", mine);
  const codes = async (secret: string, variables: { deploymentId: string; afterSequence?: number }) => {
    const stream = await follow(b.url, secret, variables);
    await stream.ended;
    expect(stream.events()).toEqual([]);
    return stream.results.flatMap(({ errors }) =>
      (errors ?? []).map(({ message, extensions }) => [extensions?.["code"], message]),
    );
  };
  expect((await codes("nobody", { deploymentId }))[0]?.[0]).toBe("UNAUTHENTICATED");
  expect((await codes(await b.token("storefront"), { deploymentId }))[0]?.[0]).toBe("FORBIDDEN");
  expect((await codes(await b.token("meter", theirs), { deploymentId }))[0]?.[0]).toBe("FORBIDDEN");
  const foreign = await codes(tenant, { deploymentId });
  expect(foreign).toEqual(
    await codes(tenant, {
      deploymentId: globalIdEncode("Deployment", "00000000-0000-4000-8000-000000000000"),
    }),
  );
  expect(foreign).toEqual([["BAD_USER_INPUT", "deploymentId: names no deployment that you may see"]]);
  expect(
    await codes(b.operator, {
      deploymentId: globalIdEncode("Project", "00000000-0000-4000-8000-000000000000"),
    }),
  ).toEqual([["BAD_USER_INPUT", "deploymentId: is the id of a Project, not of a Deployment"]]);
  expect((await codes(b.operator, { deploymentId, afterSequence: -1 }))[0]?.[0]).toBe("BAD_USER_INPUT");
  expect((await codes(b.operator, { deploymentId, afterSequence: 1000 }))[0]?.[1]).toContain(
    "beyond the last change",
  );
  const plain = await b.send(print(DeploymentEventsDocument), { deploymentId }, tenant);
  expect(plain.errors?.[0]?.extensions?.["code"]).toBe("BAD_USER_INPUT");
  expect(b.hub.followers()).toBe(0);
  await cancel(deploymentId);
});

test("the listening connection is killed again and again while changes are written: every follower misses none", async () => {
  const deploymentId = await start("never");
  const stream = await follow(b.url, b.operator, { deploymentId, afterSequence: 0 });
  for (let round = 0; round < 5; round++) {
    const { rows } = await database().pool.query(
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast listen'",
    );
    expect(rows.length, "somebody listens").toBeGreaterThan(0);
    await tell(deploymentId, `written while nobody hears: ${round}`);
    await waitUntil(
      () => stream.events().some((event) => event.message.endsWith(`: ${round}`)),
      "it is told all the same",
    );
    await waitUntil(async () => {
      const listening = await database().pool.query(
        "SELECT FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'holdfast listen' AND query ~ '^(LISTEN|SELECT 1)'",
      );
      return listening.rows.length === 2;
    }, "both servers listen again");
  }
  await cancel(deploymentId);
  expect(await stream.ended).toBe(true);
  expect(sequences(stream)).toEqual(numbers(1, sequences(stream).at(-1) as number));
});

test("200 subscribers that are dropped hard leave nothing behind: followers, timers, sockets, connections", async () => {
  const deploymentId = await start("never");
  const resources = () => {
    const counts = new Map<string, number>();
    for (const kind of process.getActiveResourcesInfo()) counts.set(kind, (counts.get(kind) ?? 0) + 1);
    return { timers: counts.get("Timeout") ?? 0, sockets: counts.get("TCPSocketWrap") ?? 0 };
  };
  const connections = async () =>
    (
      await database().pool.query<{ n: number }>(
        "SELECT count(*)::integer AS n FROM pg_stat_activity WHERE datname = current_database()",
      )
    ).rows[0]?.n as number;
  // Once for whatever is opened on first use.
  const warm = await follow(b.url, b.operator, { deploymentId });
  await waitUntil(() => warm.events().length > 0, "the first stream has begun");
  warm.drop();
  await waitUntil(() => b.hub.followers() === 0, "it is gone");
  await Promise.all(Array.from({ length: 20 }, () => b.send("{ viewer { role } }")));
  const before = { ...resources(), connections: await connections() };

  const streams = await Promise.all(
    Array.from({ length: 200 }, () => follow(b.url, b.operator, { deploymentId })),
  );
  await waitUntil(() => streams.every((stream) => stream.events().length > 0), "all have begun");
  expect(b.hub.followers()).toBe(200);
  expect(await connections(), "followers share the connections").toBeLessThanOrEqual(before.connections + 10);
  for (const stream of streams) stream.drop();
  await waitUntil(() => b.hub.followers() === 0, "nobody follows, although nothing has happened");
  await waitUntil(() => {
    const now = resources();
    // The database's pool may have grown to its size of 10; each idle connection there has a timer.
    return now.timers <= before.timers + 10 && now.sockets <= before.sockets + 10;
  }, "timers and sockets are as before");
  expect(await connections()).toBeLessThanOrEqual(before.connections + 10);
  const { data } = await b.send("{ viewer { role } }");
  expect(data).toEqual({ viewer: { role: "OPERATOR" } });
  await cancel(deploymentId);
});

test("a server that shuts down ends its streams with a word on how to go on", async () => {
  const server = await startApi(database().url, { publishing: publishingConfig(orchestrator.url) });
  const deploymentId = await start("never");
  const stream = await follow(server.url, server.operator, { deploymentId });
  await waitUntil(() => stream.events().length > 0, "the stream has begun");
  await server.close();
  expect(await stream.ended).toBe(true);
  const seen = sequences(stream).at(-1);
  expect(stream.results.at(-1)?.errors).toMatchObject([
    { message: expect.stringContaining(`afterSequence: ${seen}`), extensions: { code: "TRY_AGAIN" } },
  ]);
  const resumed = await follow(b.url, b.operator, { deploymentId, afterSequence: seen as number });
  await cancel(deploymentId);
  expect(await resumed.ended).toBe(true);
  expect(sequences(resumed)).toEqual(numbers((seen as number) + 1, sequences(resumed).at(-1) as number));
});

describe.concurrent("what takes the product's patience", () => {
  test("a right that ends, ends the stream with an error: revoked, expired, or another owner", async () => {
    const { pool } = database();
    const [acme] = (await organizations(pool, 1)) as [string];
    const projectId = await project(pool, acme);
    const deploymentId = await start("never", projectId);
    const moved = await b.token("tenant", acme);
    const others = [await b.token("tenant", acme), await b.token("tenant", acme)];
    const staying = await follow(b.url, b.operator, { deploymentId });
    const streams = await Promise.all(
      [...others, moved].map((secret) => follow(b.url, secret, { deploymentId })),
    );
    await waitUntil(() => streams.every((stream) => stream.events().length > 0), "all have begun");
    const { rows } = await pool.query<{ id: string }>(
      "SELECT id FROM api_token WHERE organization_id = $1 ORDER BY created_at",
      [acme],
    );
    const [, revoked, expired] = rows.map((row) => row.id);
    await pool.query("UPDATE api_token SET revoked_at = clock_timestamp() WHERE id = $1", [revoked]);
    await pool.query("UPDATE api_token SET expires_at = clock_timestamp() WHERE id = $1", [expired]);
    const [elsewhere] = (await organizations(pool, 1)) as [string];
    await pool.query("UPDATE project SET organization_id = $2 WHERE id = $1", [projectId, elsewhere]);
    for (const stream of streams) expect(await stream.ended).toBe(true);
    const codes = streams.map((stream) => stream.results.at(-1)?.errors?.[0]?.extensions?.["code"]);
    expect(codes).toEqual(["UNAUTHENTICATED", "UNAUTHENTICATED", "FORBIDDEN"]);
    await cancel(deploymentId);
    expect(await staying.ended).toBe(true);
    expect(staying.events().at(-1)?.deployment.state).toBe("CANCELLED");
  });

  test("the bus is lost, notifications and table alike: the stream ends with an error, never with silence", async () => {
    const wire = await wireOpen(database().url);
    const cutOff = await startApi(wire.url, { publishing: publishingConfig(orchestrator.url) }, true);
    try {
      const deploymentId = await start("never");
      const stream = await follow(cutOff.url, cutOff.operator, { deploymentId });
      await waitUntil(() => stream.events().length > 0, "the stream has begun");
      // Whatever is asked from now on gets no answer.
      wire.holdAnswersTo("");
      expect(await stream.ended).toBe(true);
      expect(stream.results.at(-1)?.errors).toMatchObject([
        {
          message: expect.stringContaining(`afterSequence: ${sequences(stream).at(-1)}`),
          extensions: { code: "TRY_AGAIN" },
        },
      ]);
      await cancel(deploymentId);
    } finally {
      wire.cut();
      await cutOff.close();
      await wire.close();
    }
  });

  test("the table cannot be read, though notifications are heard: the stream ends with an error all the same", async () => {
    const wire = await wireOpen(database().url);
    const halfDeaf = await startApi(
      wire.url,
      { publishing: publishingConfig(orchestrator.url), listenDatabaseUrl: database().url },
      true,
    );
    try {
      const deploymentId = await start("never");
      const stream = await follow(halfDeaf.url, halfDeaf.operator, { deploymentId });
      await waitUntil(() => stream.events().length > 0, "the stream has begun");
      wire.holdAnswersTo("");
      expect(await stream.ended).toBe(true);
      expect(stream.results.at(-1)?.errors?.[0]?.extensions?.["code"]).toBe("TRY_AGAIN");
      await cancel(deploymentId);
    } finally {
      wire.cut();
      await halfDeaf.close();
      await wire.close();
    }
  });

  test("notifications alone wake a follower: the regular look gets no answer", async () => {
    const wire = await wireOpen(database().url);
    const listening = await startApi(
      wire.url,
      { publishing: publishingConfig(orchestrator.url), listenDatabaseUrl: database().url },
      true,
    );
    try {
      const deploymentId = await start("never");
      await buildKnown(database().pool, deploymentId);
      const stream = await follow(listening.url, listening.operator, { deploymentId });
      await waitUntil(() => stream.events().length > 0, "the stream has begun");
      // The statement of the look, and no other.
      wire.holdAnswersTo("SELECT id, sequence, state FROM deployment");
      await tell(deploymentId, "heard");
      await waitUntil(() => stream.events().at(-1)?.message === "heard", "the event is told");
      expect(stream.results.every((result) => result.errors === undefined)).toBe(true);
      stream.drop();
      await cancel(deploymentId);
    } finally {
      wire.cut();
      await listening.close();
      await wire.close();
    }
  });

  test("a silence is filled with pings", async () => {
    const deploymentId = await start("never");
    const stream = await follow(b.url, b.operator, { deploymentId });
    await waitUntil(() => stream.events().length > 0, "the stream has begun");
    const before = stream.pings();
    await waitUntil(() => stream.pings() >= before + 1, "a ping came");
    await cancel(deploymentId);
    expect(await stream.ended).toBe(true);
  });
});
