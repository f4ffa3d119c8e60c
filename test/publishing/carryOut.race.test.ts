import { once } from "node:events";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import type { PublishingConfig } from "../../src/config.ts";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { logOpen } from "../../src/logging.ts";
import { orchestratorStart, type SimulatedOrchestrator } from "../../src/orchestrator/simulated.ts";
import { buildsStop } from "../../src/publishing/stopBuilds.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import { CancelPublishDocument, DeploymentByIdDocument, PublishAppDocument } from "../support/operations.ts";
import {
  buildKnown,
  buildsOf,
  project,
  publish,
  publishingBreaches,
  publishingConfig,
  slug,
  uuidOf,
} from "../support/publishing.ts";
import { wireOpen } from "../support/wire.ts";
import { switchSet } from "../support/world.ts";

// What an owner does with its claim: against a real build service, one that is slow, deaf, lost or mad,
// and a database that goes away.

const database = useTestDatabase();
let orchestrator: SimulatedOrchestrator;
let opened: { close(): Promise<void> }[] = [];

beforeAll(async () => {
  orchestrator = await orchestratorStart({
    host: "127.0.0.1",
    port: 0,
    buildSeconds: 0.4,
    appDomain: "apps.test",
  });
});
afterAll(() => orchestrator.close());
beforeEach(() => switchSet(database().pool, "publishing", true));
afterEach(async () => {
  for (const one of opened.reverse()) await one.close();
  opened = [];
});

async function server(
  wish: Partial<PublishingConfig> = {},
  url = database().url,
  direct = false,
): Promise<TestApi> {
  const api = await startApi(url, { publishing: publishingConfig(orchestrator.url, wish) }, direct);
  opened.push(api);
  return api;
}

/** Publishes, and returns the deployment's global id. */
async function start(api: TestApi, knob: string | null, id?: string): Promise<string> {
  const { publishApp } = await api.run(
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

async function read(api: TestApi, id: string) {
  const { node } = await api.run(DeploymentByIdDocument, { id });
  if (node?.__typename !== "Deployment") throw new Error("no deployment");
  return node;
}

async function over(api: TestApi, id: string) {
  await waitUntil(async () => (await read(api, id)).state !== "BUILDING", "the attempt is over");
  return read(api, id);
}

/** A build service of the test's own: real HTTP, and whatever it answers. */
async function ownService(
  answer: (call: string, respond: (status: number, body?: unknown) => void) => void,
  port = 0,
) {
  const calls: string[] = [];
  const service: Server = createServer((req, res) => {
    const call = `${req.method} ${req.url}`;
    calls.push(call);
    req.resume();
    answer(call, (status, body) => {
      res.writeHead(status, { "content-type": "application/json" });
      res.end(body === undefined ? undefined : typeof body === "string" ? body : JSON.stringify(body));
    });
  }).listen(port, "127.0.0.1");
  await once(service, "listening");
  const stop = async () => {
    if (!service.listening) return;
    service.closeAllConnections();
    service.close();
    await once(service, "close");
  };
  opened.push({ close: stop });
  return { url: `http://127.0.0.1:${(service.address() as AddressInfo).port}`, calls, stop };
}

test("a request for a build that is never answered is sent again with the same key: one build, which goes live", async () => {
  const api = await server({ orchestratorTimeoutMs: 300 });
  const id = await start(api, "lost-answer");
  expect(await over(api, id)).toMatchObject({ state: "LIVE", attempt: 1 });
  expect(await buildsOf(orchestrator.url, id)).toMatchObject([{ posts: 2, deletes: 0, state: "succeeded" }]);
});

test("503 before the build is accepted is tried again, with a bound", async () => {
  const api = await server();
  const id = await start(api, "refuse-twice");
  expect(await over(api, id)).toMatchObject({ state: "LIVE", attempt: 1 });
  expect(await buildsOf(orchestrator.url, id)).toMatchObject([{ posts: 1 }]);
});

test("a service that refuses again and again, and one that nobody answers for: FAILED for a person to read, and nothing stays claimed", async () => {
  const refusing = await server();
  const refused = await start(refusing, "refuse");
  const dead = await server({ orchestratorUrl: "http://127.0.0.1:2" });
  const unanswered = await start(dead, null);
  for (const [api, id] of [
    [refusing, refused],
    [dead, unanswered],
  ] as const) {
    const failed = await over(api, id);
    expect(failed.state).toBe("FAILED");
    expect(failed.error).toMatch(/^The build service is out of reach: .*publish again later\.$/);
  }
  expect(await buildsOf(orchestrator.url, refused)).toEqual([]);
  // Nothing arrived at the dead one: there is nothing to stop there, ever.
  const { rows } = await database().pool.query<{ url: string; due: boolean }>(
    "SELECT orchestrator_url AS url, stop_due_at IS NOT NULL AS due FROM publish_attempt WHERE deployment_id = (SELECT id FROM deployment ORDER BY created_at DESC LIMIT 1)",
  );
  expect(rows).toEqual([{ url: "http://127.0.0.1:2", due: false }]);
  expect(await publishingBreaches(database().pool)).toEqual([]);
});

test("an outcome that stays unknown: the attempt fails, and the build that had begun after all is found by its key and stopped", async () => {
  const builds = new Map<string, string>();
  const deleted: string[] = [];
  let answering = false;
  const service = createServer((req, res) => {
    req.resume();
    if (req.method === "POST") {
      const key = String(req.headers["idempotency-key"]);
      const known = builds.get(key);
      builds.set(key, known ?? `build-${builds.size}`);
      if (answering)
        res.writeHead(known === undefined ? 201 : 200).end(JSON.stringify({ buildId: builds.get(key) }));
    } else if (req.method === "DELETE") {
      deleted.push(String(req.url));
      res.writeHead(204).end();
    }
  }).listen(0, "127.0.0.1");
  await once(service, "listening");
  try {
    const api = await server({
      orchestratorTimeoutMs: 100,
      orchestratorUrl: `http://127.0.0.1:${(service.address() as AddressInfo).port}`,
    });
    const id = await start(api, null);
    expect((await over(api, id)).error).toContain("did not answer within 0.1 s");
    expect(builds.size).toBe(1);
    answering = true;
    // The next round comes by when the lease of the one that failed is over.
    await database().pool.query(
      "UPDATE publish_attempt SET stop_due_at = clock_timestamp() WHERE stop_due_at IS NOT NULL",
    );
    await waitUntil(async () => {
      await buildsStop(api.database.db, 1000, logOpen("silent"), new AbortController().signal);
      return deleted.length > 0;
    }, "the build is stopped");
    expect([builds.size, deleted]).toEqual([1, ["/builds/build-0"]]);
    const { rows } = await database().pool.query(
      "SELECT count(*)::integer AS due FROM publish_attempt WHERE stop_due_at IS NOT NULL AND deployment_id = $1",
      [uuidOf(id)],
    );
    expect(rows).toEqual([{ due: 0 }]);
  } finally {
    service.closeAllConnections();
    service.close();
    await once(service, "close");
  }
});

test.each([
  ["something that is no build", (respond: Respond) => respond(201, "<html>"), "something that is no build"],
  ["a build without an id", (respond: Respond) => respond(201, { id: 1 }), "something that is no build"],
  [
    "an id with a NUL byte",
    (respond: Respond) => respond(201, { buildId: "a\u0000b" }),
    "something that is no build",
  ],
  ["a refusal", (respond: Respond) => respond(422, { error: "no" }), "status 422"],
  ["a redirect", (respond: Respond) => respond(302), "status 302"],
])("the build service answers with %s: FAILED, with a reason", async (_name, answer, reason) => {
  const service = await ownService((_call, respond) => answer(respond));
  const api = await server({ orchestratorUrl: service.url });
  const failed = await over(api, await start(api, null));
  expect(failed.state).toBe("FAILED");
  expect(failed.error).toContain(reason);
});
type Respond = (status: number, body?: unknown) => void;

test("texts of the build service are made fit for a page and for the database", async () => {
  const service = await ownService((call, respond) =>
    call.startsWith("POST")
      ? respond(201, { buildId: "b" })
      : respond(200, {
          state: "failed",
          message: null,
          url: null,
          error: `bad\u0000 \u001b[31mred ${"x".repeat(5000)}\ud800`,
        }),
  );
  const api = await server({ orchestratorUrl: service.url });
  const failed = await over(api, await start(api, null));
  expect(failed.error).toHaveLength(2000);
  expect(failed.error).toMatch(/^bad {2} \[31mred x+$/);
});

test("a build that the service forgets is FAILED", async () => {
  const service = await ownService((call, respond) =>
    call.startsWith("POST") ? respond(201, { buildId: "b" }) : respond(404),
  );
  const api = await server({ orchestratorUrl: service.url });
  expect((await over(api, await start(api, null))).error).toContain("does not know the build any more");
});

test("a build over the limit is ended by its owner, and stopped", async () => {
  const api = await server({ buildLimitSeconds: 1, heartbeatSeconds: 1, claimTimeoutSeconds: 2 });
  const id = await start(api, "never");
  const failed = await over(api, id);
  expect(failed).toMatchObject({ state: "FAILED", error: expect.stringContaining("took longer than 1 s") });
  await waitUntil(
    async () =>
      (await buildsOf(orchestrator.url, id)).every(
        (build) => build.deletes === 1 && build.state === "failed",
      ),
    "the build is stopped",
  );
});

test("the build service is restarted in the middle of a build: it is looked at again, and goes live", async () => {
  const first = await ownService((call, respond) =>
    call.startsWith("POST") ? respond(201, { buildId: "b" }) : respond(200, { state: "building" }),
  );
  const api = await server({ orchestratorUrl: first.url });
  const id = await start(api, null);
  await buildKnown(database().pool, id);
  await first.stop();
  const second = await ownService(
    (_call, respond) => respond(200, { state: "succeeded", url: "https://a.test/\u0000x" }),
    Number(new URL(first.url).port),
  );
  const live = await over(api, id);
  expect(live).toMatchObject({ state: "LIVE", attempt: 1, liveUrl: "https://a.test/%00x" });
  expect(second.calls.every((call) => call === "GET /builds/b")).toBe(true);
});

test("the build service dies in the middle of a build and stays away: FAILED, and its build is stopped once it is back", async () => {
  const first = await ownService((call, respond) =>
    call.startsWith("POST") ? respond(201, { buildId: "b" }) : respond(200, { state: "building" }),
  );
  const api = await server({ orchestratorUrl: first.url, orchestratorOutageMs: 500 });
  const id = await start(api, null);
  await buildKnown(database().pool, id);
  await first.stop();
  expect((await over(api, id)).error).toContain("The build service is out of reach: it cannot be reached");
  const second = await ownService((_call, respond) => respond(204), Number(new URL(first.url).port));
  await waitUntil(async () => {
    await database().pool.query(
      "UPDATE publish_attempt SET stop_due_at = clock_timestamp() WHERE deployment_id = $1 AND stop_due_at IS NOT NULL",
      [uuidOf(id)],
    );
    await buildsStop(api.database.db, 1000, logOpen("silent"), new AbortController().signal);
    return second.calls.length > 0;
  }, "the service is told");
  expect(second.calls).toEqual(["DELETE /builds/b"]);
});

test("the claim's answer gets lost after the commit: the process finds its claim and carries it out", async () => {
  const wire = await wireOpen(database().url);
  opened.push(wire);
  const api = await server({}, wire.url, true);
  const watcher = await server();
  const id = await project(database().pool);
  await api.send("{ viewer { role } }");
  wire.holdAnswersTo("publish_claim");
  const lost = api.send(
    "mutation ($input: PublishAppInput!) { publishApp(input: $input) { __typename } }",
    publish(id, slug()),
  );
  const claimed = async () =>
    (await database().pool.query<{ id: string }>("SELECT id FROM deployment WHERE project_id = $1", [id]))
      .rows[0]?.id;
  await waitUntil(async () => (await claimed()) !== undefined, "the claim is committed");
  wire.cut();
  expect((await lost).errors?.[0]?.extensions?.["code"]).toBe("INTERNAL_SERVER_ERROR");
  const deployment = globalIdEncode("Deployment", (await claimed()) as string);
  expect(await over(watcher, deployment)).toMatchObject({ state: "LIVE", attempt: 1 });
  expect(await buildsOf(orchestrator.url, deployment)).toMatchObject([{ posts: 1, deletes: 0 }]);
});

test("while the build service takes its time, no transaction is open and others are served", async () => {
  const { pool } = database();
  let release: () => void = () => undefined;
  const held = new Promise<void>((resolve) => {
    release = resolve;
  });
  const service = await ownService((call, respond) => {
    void held.then(() =>
      call.startsWith("POST") ? respond(201, { buildId: "b" }) : respond(200, { state: "succeeded" }),
    );
  });
  const api = await server({ orchestratorUrl: service.url, orchestratorTimeoutMs: 60_000 });
  const ids = await Promise.all(Array.from({ length: 15 }, () => start(api, null)));
  await waitUntil(() => service.calls.length === 15, "every build is asked for");
  const { rows } = await pool.query(
    "SELECT count(*)::integer AS open FROM pg_stat_activity WHERE datname = current_database() AND state LIKE 'idle in transaction%'",
  );
  expect(rows).toEqual([{ open: 0 }]);
  expect(api.database.pool.idleCount).toBe(api.database.pool.totalCount);
  const cancelled = await api.run(CancelPublishDocument, {
    input: { deploymentId: ids[0] as string, attempt: 1 },
  });
  expect(cancelled.cancelPublish?.__typename).toBe("PublishCancelled");
  release();
  for (const id of ids.slice(1)) expect((await over(api, id)).state).toBe("LIVE");
  expect(await read(api, ids[0] as string)).toMatchObject({ state: "CANCELLED", liveAttempt: null });
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("one process loses a deployment and takes it again: its first attempt changes nothing of its second", async () => {
  const { pool } = database();
  const api = await server({ heartbeatSeconds: 1, claimTimeoutSeconds: 300 });
  const id = await project(pool);
  const deployment = await start(api, "deaf", id);
  await waitUntil(
    async () => (await buildsOf(orchestrator.url, deployment)).length === 1,
    "the first build began",
  );
  // Its owner lives, and may beat in between.
  await waitUntil(async () => {
    await pool.query(
      "UPDATE deployment SET heartbeat_at = clock_timestamp() - interval '10 minutes' WHERE project_id = $1",
      [id],
    );
    const { publishApp } = await api.run(
      PublishAppDocument,
      publish(id, slug(), "https://git.test/app?simulate=never"),
    );
    return publishApp?.__typename === "PublishStarted";
  }, "it is taken over");
  await waitUntil(async () => {
    const first = (await buildsOf(orchestrator.url, deployment)).find((build) => build.attempt === 1);
    return first?.state === "succeeded" && first.deletes === 1;
  }, "the first build was told to stop, once, and succeeded all the same");
  const owner = await pool.query<{ owners: number }>(
    "SELECT count(DISTINCT owner)::integer AS owners FROM publish_attempt a JOIN deployment d ON d.id = a.deployment_id WHERE d.project_id = $1",
    [id],
  );
  expect(owner.rows).toEqual([{ owners: 1 }]);
  expect(await read(api, deployment)).toMatchObject({ state: "BUILDING", attempt: 2, liveAttempt: null });
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("the database goes away in the middle of a build and comes back: the build outlives it", async () => {
  const wire = await wireOpen(database().url);
  opened.push(wire);
  const api = await server({ heartbeatSeconds: 1, claimTimeoutSeconds: 300 }, wire.url, true);
  const watcher = await server();
  const id = await start(api, "slow");
  await waitUntil(async () => (await buildsOf(orchestrator.url, id)).length === 1, "the build began");
  for (let round = 0; round < 3; round++) {
    const before = (await read(watcher, id)).sequence;
    wire.cut();
    await waitUntil(async () => (await read(watcher, id)).sequence > before, "it goes on");
  }
  expect(await over(watcher, id)).toMatchObject({ state: "LIVE", attempt: 1 });
});

test("the database stays away for longer than a beat is trusted: the owner stops by itself and asks the build service nothing more", async () => {
  const wire = await wireOpen(database().url);
  opened.push(wire);
  const service = await ownService((call, respond) =>
    call.startsWith("POST")
      ? respond(201, { buildId: "b" })
      : respond(200, { state: "building", message: call }),
  );
  const api = await server(
    { orchestratorUrl: service.url, heartbeatSeconds: 1, claimTimeoutSeconds: 2 },
    wire.url,
    true,
  );
  const watcher = await server({ heartbeatSeconds: 1, claimTimeoutSeconds: 2 });
  const id = await start(api, null);
  await waitUntil(() => service.calls.length > 2, "the build is looked at");
  // What is asked still arrives; no answer comes back.
  wire.holdAnswersTo("publish_");
  let asked = -1;
  await waitUntil(async () => {
    const { rows } = await database().pool.query(
      "SELECT heartbeat_at < clock_timestamp() - interval '2 seconds' AS silent FROM deployment ORDER BY created_at DESC LIMIT 1",
    );
    asked = service.calls.length;
    return rows[0]?.silent as boolean;
  }, "nobody has beaten for longer than the time-out");
  const { publishApp } = await watcher.run(PublishAppDocument, {
    input: { projectId: (await read(watcher, id)).project.id, slug: slug(), source: "https://git.test/app" },
  });
  expect(publishApp).toMatchObject({ __typename: "PublishStarted", attempt: 2 });
  wire.cut();
  expect(await over(watcher, id)).toMatchObject({ state: "LIVE", attempt: 2, liveAttempt: 2 });
  expect(service.calls.filter((call) => call.startsWith("GET"))).toHaveLength(
    service.calls.slice(0, asked).filter((call) => call.startsWith("GET")).length,
  );
  expect(await publishingBreaches(database().pool)).toEqual([]);
});

test("a server that ends hands its publishes back at once, and stops their builds", async () => {
  const { pool } = database();
  const api = await server();
  const watcher = await server();
  const ids = [await project(pool), await project(pool)];
  const deployments = await Promise.all(ids.map((id) => start(api, "never", id)));
  await waitUntil(
    async () =>
      (await Promise.all(deployments.map((id) => buildsOf(orchestrator.url, id)))).flat().length === 2,
    "both builds began",
  );
  await api.close();
  opened = opened.filter((one) => one !== api);
  for (const [index, deployment] of deployments.entries()) {
    expect(await read(watcher, deployment)).toMatchObject({
      state: "FAILED",
      error: expect.stringContaining("handed the publish back"),
      attempts: { edges: [{ node: { state: "ABANDONED" } }] },
    });
    expect(await buildsOf(orchestrator.url, deployment)).toMatchObject([{ deletes: 1, state: "failed" }]);
    await start(watcher, null, ids[index] as string);
    expect((await over(watcher, deployment)).state).toBe("LIVE");
  }
  expect(await publishingBreaches(pool)).toEqual([]);
});
