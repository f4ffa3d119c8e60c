import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { orchestratorStart, type SimulatedOrchestrator } from "../../src/orchestrator/simulated.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import {
  CancelPublishDocument,
  CreateProjectDocument,
  DeploymentByIdDocument,
  ProjectsDocument,
  PublishAppDocument,
  type PublishAppMutation,
} from "../support/operations.ts";
import {
  buildsOf,
  project,
  publish,
  publishingBreaches,
  publishingConfig,
  slug,
  uuidOf,
} from "../support/publishing.ts";
import { organizations, switchSet } from "../support/world.ts";

const database = useTestDatabase();
let orchestrator: SimulatedOrchestrator;
let api: TestApi;

beforeAll(async () => {
  orchestrator = await orchestratorStart({
    host: "127.0.0.1",
    port: 0,
    buildSeconds: 0.4,
    appDomain: "apps.test",
  });
  api = await startApi(database().url, { publishing: publishingConfig(orchestrator.url) });
});
afterAll(async () => {
  await api.close();
  await orchestrator.close();
});
beforeEach(() => switchSet(database().pool, "publishing", true));

type Result = NonNullable<PublishAppMutation["publishApp"]>;

async function ask(projectId: string, name: string, source?: string, secret?: string): Promise<Result> {
  const { publishApp } = await api.run(PublishAppDocument, publish(projectId, name, source), secret);
  if (publishApp === null) throw new Error("no result");
  return publishApp;
}

async function start(projectId: string, name: string, source?: string) {
  const result = await ask(projectId, name, source);
  if (result.__typename !== "PublishStarted")
    throw new Error(`expected a start, got ${JSON.stringify(result)}`);
  return result;
}

async function read(id: string) {
  const { node } = await api.run(DeploymentByIdDocument, { id });
  if (node?.__typename !== "Deployment") throw new Error("no deployment");
  return node;
}

async function over(id: string) {
  await waitUntil(async () => (await read(id)).state !== "BUILDING", "the attempt is over");
  return read(id);
}

const attemptsOf = (deployment: Awaited<ReturnType<typeof read>>) =>
  deployment.attempts.edges.map(({ node }) => [node.number, node.state]);

test("PublishStarted: one build is asked for with the attempt's id as its key, and goes live", async () => {
  const name = slug();
  const id = await project(database().pool);
  const started = await start(id, name, "https://git.test/shop");
  expect(started).toMatchObject({
    attempt: 1,
    deployment: {
      slug: name,
      url: `https://${name}.apps.test`,
      state: "BUILDING",
      attempt: 1,
      liveAttempt: null,
      error: null,
    },
  });
  const live = await over(started.deployment.id);
  expect(live).toMatchObject({
    state: "LIVE",
    attempt: 1,
    liveAttempt: 1,
    error: null,
    url: `https://${name}.apps.test`,
    liveUrl: `https://${name}.apps.test`,
    project: { id: globalIdEncode("Project", id) },
    attempts: {
      totalCount: 1,
      edges: [
        { node: { number: 1, state: "LIVE", error: null, slug: name, source: "https://git.test/shop" } },
      ],
    },
  });
  const builds = await buildsOf(orchestrator.url, live.id);
  expect(builds).toMatchObject([
    { key: uuidOf(live.attempts.edges[0]?.node.id as string), slug: name, attempt: 1, posts: 1, deletes: 0 },
  ]);
  expect(await publishingBreaches(database().pool)).toEqual([]);
});

test("PublishInProgress tells a person and an agent that nothing is wrong, what runs, and to follow it", async () => {
  const id = await project(database().pool);
  const started = await start(id, slug(), "https://git.test/app?simulate=never");
  const again = await ask(id, slug());
  expect(again).toMatchObject({
    __typename: "PublishInProgress",
    nextAction: "FOLLOW",
    retryAfterMs: 30_000,
    attempt: 1,
    since: started.deployment.claimedAt,
    deployment: { id: started.deployment.id, state: "BUILDING" },
  });
  if (again.__typename !== "PublishInProgress") throw new Error("unreachable");
  expect(again.message).toMatch(/build .* is running/i);
  expect(again.message).toContain("Nothing is wrong");
  expect(again.message).toMatch(/wait/);
  await api.run(CancelPublishDocument, { input: { deploymentId: started.deployment.id, attempt: 1 } });
});

test("a failed attempt says why, nothing stays claimed, and the next one carries nothing of it", async () => {
  const id = await project(database().pool);
  const name = slug();
  const first = await start(id, name, "https://git.test/app?simulate=fail");
  const failed = await over(first.deployment.id);
  expect(failed).toMatchObject({
    state: "FAILED",
    error: "Compiling failed: this build was asked to fail.",
    liveAttempt: null,
    slug: name,
  });
  const second = await start(id, name);
  expect(second).toMatchObject({ attempt: 2, deployment: { error: null, state: "BUILDING" } });
  const live = await over(first.deployment.id);
  expect(live).toMatchObject({ state: "LIVE", error: null, liveAttempt: 2 });
  expect(attemptsOf(live)).toEqual([
    [2, "LIVE"],
    [1, "FAILED"],
  ]);
  expect(live.attempts.edges.map(({ node }) => node.error)).toEqual([
    null,
    "Compiling failed: this build was asked to fail.",
  ]);
});

test("a republish that fails leaves the live app live; one that succeeds supersedes it", async () => {
  const id = await project(database().pool);
  const name = slug();
  const first = await start(id, name);
  await over(first.deployment.id);
  await start(id, name, "https://git.test/app?simulate=fail");
  const failed = await over(first.deployment.id);
  expect(failed).toMatchObject({
    state: "FAILED",
    attempt: 2,
    liveAttempt: 1,
    liveUrl: `https://${name}.apps.test`,
  });
  await start(id, name);
  const live = await over(first.deployment.id);
  expect(live).toMatchObject({ state: "LIVE", attempt: 3, liveAttempt: 3, error: null });
  expect(attemptsOf(live)).toEqual([
    [3, "LIVE"],
    [2, "FAILED"],
    [1, "SUPERSEDED"],
  ]);
  expect(await publishingBreaches(database().pool)).toEqual([]);
});

test("another slug renames the app when it goes live; until then both names are its own, and a failure gives the new one back", async () => {
  const { pool } = database();
  const id = await project(pool);
  const other = await project(pool);
  const [before, wanted, after] = [slug(), slug(), slug()];
  const { deployment } = await start(id, before);
  await over(deployment.id);

  const failing = await start(id, wanted, "https://git.test/app?simulate=fail");
  expect(failing.deployment).toMatchObject({ slug: wanted, liveUrl: `https://${before}.apps.test` });
  expect((await ask(other, before)).__typename).toBe("SlugTaken");
  expect((await ask(other, wanted)).__typename).toBe("SlugTaken");
  expect(await over(deployment.id)).toMatchObject({
    state: "FAILED",
    slug: before,
    url: `https://${before}.apps.test`,
  });
  await start(other, wanted, "https://git.test/app?simulate=never");

  await start(id, after);
  expect(await over(deployment.id)).toMatchObject({
    state: "LIVE",
    slug: after,
    url: `https://${after}.apps.test`,
  });
  const third = await project(pool);
  await over((await start(third, before)).deployment.id);
  expect(await publishingBreaches(pool)).toEqual([]);
});

test("SlugTaken names the canonical slug and suggests free ones; the project's own name is never taken", async () => {
  const { pool } = database();
  const [one, two] = [await project(pool), await project(pool)];
  const name = slug();
  const { deployment } = await start(one, name);
  const taken = await ask(two, name.toUpperCase());
  expect(taken).toMatchObject({
    __typename: "SlugTaken",
    nextAction: "RENAME",
    retryAfterMs: null,
    slug: name,
  });
  if (taken.__typename !== "SlugTaken") throw new Error("unreachable");
  expect(taken.suggestions.length).toBeGreaterThan(0);
  await over((await start(two, taken.suggestions[0] as string)).deployment.id);
  await over(deployment.id);
  // Saved again unchanged, while it is live: its own.
  await over((await start(one, name)).deployment.id);
  const { rows } = await pool.query(
    "SELECT count(*)::integer AS deployments FROM deployment WHERE project_id = ANY($1)",
    [[one, two]],
  );
  expect(rows).toEqual([{ deployments: 2 }]);
});

test("SlugInvalid: nothing is written", async () => {
  const id = await project(database().pool);
  expect(await ask(id, "www")).toMatchObject({
    __typename: "SlugInvalid",
    nextAction: "RENAME",
    slug: "www",
  });
  const { rows } = await database().pool.query("SELECT FROM deployment WHERE project_id = $1", [id]);
  expect(rows).toEqual([]);
});

test("ProjectNotFound: unknown, or another organization's, in the same words", async () => {
  const { pool } = database();
  const [mine, theirs] = (await organizations(pool, 2)) as [string, string];
  const tenant = await api.token("tenant", mine);
  const foreign = await ask(await project(pool, theirs), slug(), undefined, tenant);
  const unknown = await ask("00000000-0000-4000-8000-000000000000", slug(), undefined, tenant);
  expect(foreign).toEqual(unknown);
  expect(foreign).toMatchObject({ __typename: "ProjectNotFound", nextAction: "FIX_REQUEST" });
});

test("ModuleDisabled: closed for everybody, opened for one organization; cancelling and finishing go on", async () => {
  const { pool } = database();
  const [acme] = (await organizations(pool, 1)) as [string];
  const id = await project(pool, acme);
  const running = await project(pool, acme);
  const { deployment } = await start(running, slug(), "https://git.test/app?simulate=never");
  await switchSet(pool, "publishing", false);
  const tenant = await api.token("tenant", acme);
  for (const secret of [api.operator, tenant]) {
    expect(await ask(id, slug(), undefined, secret)).toMatchObject({
      __typename: "ModuleDisabled",
      module: "PUBLISHING",
      nextAction: "CONTACT_OPERATOR",
    });
  }
  const { cancelPublish } = await api.run(
    CancelPublishDocument,
    { input: { deploymentId: deployment.id, attempt: 1 } },
    tenant,
  );
  expect(cancelPublish?.__typename).toBe("PublishCancelled");
  await pool.query(
    "INSERT INTO feature_override (organization_id, module, enabled) VALUES ($1, 'publishing', true)",
    [acme],
  );
  expect((await ask(id, slug(), undefined, tenant)).__typename).toBe("PublishStarted");
});

test("CoolingDown: configured, per project, from the database's clock; a refused attempt does not push it out", async () => {
  const { pool } = database();
  const cooling = await startApi(database().url, {
    publishing: publishingConfig(orchestrator.url, { coolDownSeconds: 3600 }),
  });
  try {
    const [one, two] = [await project(pool), await project(pool)];
    const attempt = async (id: string) =>
      (await cooling.run(PublishAppDocument, publish(id, slug()))).publishApp as Result;
    const started = await attempt(one);
    if (started.__typename !== "PublishStarted") throw new Error("expected a start");
    await over(started.deployment.id);
    const first = await attempt(one);
    const second = await attempt(one);
    expect(first).toMatchObject({
      __typename: "CoolingDown",
      nextAction: "WAIT",
      retryAfterMs: expect.any(Number),
    });
    const at = (result: Result) => (result.__typename === "CoolingDown" ? result.retryAt : null);
    expect(at(second)).toBe(at(first));
    const { rows } = await pool.query<{ at: Date }>(
      "SELECT claimed_at + interval '1 hour' AS at FROM deployment WHERE project_id = $1",
      [one],
    );
    expect(new Date(String(at(first)))).toEqual(rows[0]?.at);
    expect((await attempt(two)).__typename).toBe("PublishStarted");
  } finally {
    await cooling.close();
  }
});

// ---------------------------------------------------------------- cancelling

test("PublishCancelled is terminal: the build that goes on and succeeds changes nothing, one cancel call went out, and the next publish is not mixed up with it", async () => {
  const id = await project(database().pool);
  const name = slug();
  const first = await start(id, name);
  await over(first.deployment.id);
  const second = await start(id, name, "https://git.test/app?simulate=deaf");
  await waitUntil(
    async () => (await buildsOf(orchestrator.url, second.deployment.id)).length === 2,
    "the build service has the build",
  );
  const { cancelPublish } = await api.run(CancelPublishDocument, {
    input: { deploymentId: second.deployment.id, attempt: 2 },
  });
  expect(cancelPublish).toMatchObject({
    __typename: "PublishCancelled",
    deployment: { state: "CANCELLED", attempt: 2, liveAttempt: 1, error: null },
  });
  await waitUntil(async () => {
    const deaf = (await buildsOf(orchestrator.url, second.deployment.id)).find(
      (build) => build.attempt === 2,
    );
    return deaf?.state === "succeeded" && deaf.deletes > 0;
  }, "the deaf build was told to stop, and has succeeded all the same");
  expect(await read(second.deployment.id)).toMatchObject({ state: "CANCELLED", attempt: 2, liveAttempt: 1 });
  await start(id, name);
  const live = await over(second.deployment.id);
  expect(live).toMatchObject({ state: "LIVE", attempt: 3, liveAttempt: 3 });
  expect(attemptsOf(live)).toEqual([
    [3, "LIVE"],
    [2, "CANCELLED"],
    [1, "SUPERSEDED"],
  ]);
  const deletes = (await buildsOf(orchestrator.url, live.id)).map((build) => [build.attempt, build.deletes]);
  expect(deletes).toEqual([
    [1, 0],
    [2, 1],
    [3, 0],
  ]);
  expect(await publishingBreaches(database().pool)).toEqual([]);
});

test("PublishNotRunning: over, older, or not yet there; nothing changes", async () => {
  const id = await project(database().pool);
  const { deployment } = await start(id, slug(), "https://git.test/app?simulate=never");
  const cancel = async (attempt: number) =>
    (await api.run(CancelPublishDocument, { input: { deploymentId: deployment.id, attempt } })).cancelPublish;
  expect(await cancel(2)).toMatchObject({
    __typename: "PublishNotRunning",
    nextAction: "FIX_REQUEST",
    deployment: { state: "BUILDING", attempt: 1 },
  });
  expect((await cancel(1))?.__typename).toBe("PublishCancelled");
  expect(await cancel(1)).toMatchObject({
    __typename: "PublishNotRunning",
    nextAction: "USE_EXISTING",
    deployment: { state: "CANCELLED" },
  });
});

test("DeploymentNotFound: unknown, or another organization's, in the same words", async () => {
  const { pool } = database();
  const [mine, theirs] = (await organizations(pool, 2)) as [string, string];
  const tenant = await api.token("tenant", mine);
  const { deployment } = await start(
    await project(pool, theirs),
    slug(),
    "https://git.test/app?simulate=never",
  );
  const cancel = async (deploymentId: string) =>
    (await api.run(CancelPublishDocument, { input: { deploymentId, attempt: 1 } }, tenant)).cancelPublish;
  const foreign = await cancel(deployment.id);
  expect(foreign).toEqual(await cancel(globalIdEncode("Deployment", "00000000-0000-4000-8000-000000000000")));
  expect(foreign).toMatchObject({ __typename: "DeploymentNotFound", nextAction: "FIX_REQUEST" });
  expect((await read(deployment.id)).state).toBe("BUILDING");
});

// ---------------------------------------------------------------- projects

test("ProjectCreated, for the tenant's own organization or the one an operator names; lists page by name and survive a deleted row", async () => {
  const { pool } = database();
  const [acme, globex] = (await organizations(pool, 2)) as [string, string];
  const tenant = await api.token("tenant", acme);
  const { createProject } = await api.run(CreateProjectDocument, { input: { name: "Shop" } }, tenant);
  expect(createProject?.project).toMatchObject({
    name: "Shop",
    organization: { id: globalIdEncode("Organization", acme) },
    deployment: null,
  });
  const organizationId = globalIdEncode("Organization", acme);
  for (const name of ["Shop", "Blog", "Zoo", "App"]) {
    await api.run(CreateProjectDocument, { input: { name, organizationId } });
  }
  await api.run(CreateProjectDocument, {
    input: { name: "Theirs", organizationId: globalIdEncode("Organization", globex) },
  });
  const page = async (after: string | null) =>
    (await api.run(ProjectsDocument, { first: 2, after }, tenant)).projects;
  const first = await page(null);
  expect(first.totalCount).toBe(5);
  expect(first.edges.map(({ node }) => node.name)).toEqual(["App", "Blog"]);
  await pool.query("DELETE FROM project WHERE id = $1", [uuidOf(first.edges[1]?.node.id as string)]);
  const second = await page(first.pageInfo.endCursor as string);
  expect(second.edges.map(({ node }) => node.name)).toEqual(["Shop", "Shop"]);
  const third = await page(second.pageInfo.endCursor as string);
  expect(third.edges.map(({ node }) => node.name)).toEqual(["Zoo"]);
  expect(third.pageInfo.hasNextPage).toBe(false);
});
