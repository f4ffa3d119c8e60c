import { spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { chmod, mkdtemp, readFile, rm, stat, writeFile } from "node:fs/promises";
import { connect } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { DEMO_ORGANIZATION } from "../../src/server/demo.ts";
import { waitUntil } from "../support/barrier.ts";
import { emptyDatabase, useTestDatabase } from "../support/database.ts";
import { holdfast, stopAll } from "../support/process.ts";
import { machines, organizations, switchSet } from "../support/world.ts";

// `holdfast` as a person or a script meets it: real processes, an embedded server of their own.

const database = useTestDatabase();
let directory: string;

beforeAll(async () => {
  // Closed to everybody but its owner, as mktemp -d makes them: the embedded server must cope.
  directory = await mkdtemp(join(tmpdir(), "holdfast-process-"));
  await chmod(directory, 0o700);
});
afterEach(stopAll);
afterAll(() => rm(directory, { recursive: true, force: true }));

const OPERATOR = "process-test-operator-token";

async function send(url: string, token: string, query: string, variables: unknown = {}) {
  const response = await fetch(url, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${token}` },
    body: JSON.stringify({ query, variables }),
  });
  return (await response.json()) as { data?: Record<string, unknown>; errors?: unknown[] };
}

const RESERVE = `mutation ($input: ReserveMachineInput!) {
  reserveMachine(input: $input) { __typename ... on MachineReserved { reservation { id } } ... on AlreadyReserved { reservation { id } } }
}`;

async function run(args: string[], environment: Record<string, string> = {}) {
  const process = holdfast(args, environment);
  return { code: await process.ended(), output: process.output() };
}

test("first start: embedded database, migrations, demo data, a token of mode 0600; a second start is refused; commands work beside it; after SIGTERM everything is there again", async () => {
  const dataDir = join(directory, "first");
  const environment = { HOLDFAST_DATA_DIR: dataDir };
  const first = holdfast([], environment);
  const url = await first.served();
  const tokenFile = join(dataDir, "operator-token");
  expect(first.output()).toContain(`The operator token is in ${tokenFile}`);
  expect((await stat(tokenFile)).mode & 0o777).toBe(0o600);
  const token = (await readFile(tokenFile, "utf8")).trim();
  expect(first.output()).not.toContain(token);
  const input = {
    organizationId: globalIdEncode("Organization", DEMO_ORGANIZATION),
    orderReference: "order-1",
    idempotencyKey: randomUUID(),
    requirements: { siteCode: "FRA", minCpuCores: 8, labels: ["nvme"] },
  };
  const reserved = await send(url, token, RESERVE, { input });
  expect(reserved.data?.["reserveMachine"]).toMatchObject({ __typename: "MachineReserved" });
  for (const path of ["/health", "/ready"]) expect((await fetch(new URL(path, url))).status).toBe(200);

  const second = await run([], environment);
  expect(second.code).toBe(1);
  expect(second.output).toMatch(/Another Holdfast \(process \d+\) is running on the data directory/);
  expect(second.output).not.toMatch(/\n\s+at /);

  const created = await run(["token", "create", "web", "--role", "storefront"], environment);
  expect(created.code).toBe(0);
  const secret = /holdfast_\S+/.exec(created.output)?.[0] ?? "";
  expect(await send(url, secret, "{ viewer { role } }")).toEqual({
    data: { viewer: { role: "STOREFRONT" } },
  });
  expect((await run(["migrate", "--status"], environment)).code).toBe(0);
  const listed = await run(["token", "list", "--json"], environment);
  const { id } = (JSON.parse(listed.output) as { id: string; name: string }[]).find(
    (row) => row.name === "web",
  ) ?? { id: "" };
  expect((await run(["token", "revoke", id], environment)).code).toBe(0);
  expect(JSON.stringify(await send(url, secret, "{ viewer { role } }"))).toContain("UNAUTHENTICATED");

  first.child.kill("SIGTERM");
  expect(await first.ended()).toBe(0);

  const again = holdfast([], environment);
  const repeated = await send(await again.served(), token, RESERVE, { input });
  expect(repeated.data?.["reserveMachine"]).toMatchObject({ __typename: "AlreadyReserved" });
  // A terminal's Ctrl-C comes twice under npm.
  again.child.kill("SIGINT");
  again.child.kill("SIGINT");
  expect(await again.ended()).toBe(0);
});

test("a server that was killed with its database left running: the next start takes the database over", async () => {
  const environment = { HOLDFAST_DATA_DIR: join(directory, "killed"), HOLDFAST_DEMO: "0" };
  const killed = holdfast([], environment);
  await killed.served();
  killed.child.kill("SIGKILL");
  await killed.ended();
  const next = holdfast([], environment);
  await next.served();
  const lock = join(environment.HOLDFAST_DATA_DIR, "postgres", "postmaster.pid");
  await stat(lock);
  next.child.kill("SIGTERM");
  expect(await next.ended()).toBe(0);
  await expect(stat(lock)).rejects.toThrow(/ENOENT/);
});

test("two first starts at once on one directory: one serves, the other says who does", async () => {
  const environment = { HOLDFAST_DATA_DIR: join(directory, "both") };
  const both = [holdfast([], environment), holdfast([], environment)];
  await waitUntil(() => both.some((one) => one.child.exitCode !== null), "one of the two ends");
  const loser = both.find((one) => one.child.exitCode !== null);
  const winner = both.find((one) => one !== loser);
  expect(loser?.output()).toContain("is running on the data directory");
  await winner?.served();
  winner?.child.kill("SIGTERM");
  expect(await winner?.ended()).toBe(0);
});

test("SIGTERM under load: every answer that was given is true, every other order is found by its key, and the process ends with 0", async () => {
  const { pool, url: databaseUrl } = database();
  await switchSet(pool, "datacenter", true);
  await machines(pool, 60);
  const orgs = await organizations(pool, 60);
  const environment = {
    DATABASE_URL: databaseUrl,
    HOLDFAST_OPERATOR_TOKEN: OPERATOR,
    HOLDFAST_SWEEP_SECONDS: "0",
  };
  const server = holdfast([], environment);
  const url = await server.served();
  const inputs = orgs.map((id) => ({
    organizationId: globalIdEncode("Organization", id),
    orderReference: "order",
    idempotencyKey: randomUUID(),
    requirements: {},
  }));
  let answered = 0;
  const answers = Promise.all(
    inputs.map(async (input) => {
      const answer = await send(url, OPERATOR, RESERVE, { input }).catch(() => null);
      answered += 1;
      return answer;
    }),
  );
  await waitUntil(() => answered > 0, "the load is under way");
  server.child.kill("SIGTERM");
  const given = await answers;
  expect(await server.ended()).toBe(0);

  const next = holdfast([], environment);
  const nextUrl = await next.served();
  for (const [index, input] of inputs.entries()) {
    const before = given[index]?.data?.["reserveMachine"] as
      | { __typename: string; reservation?: { id: string } }
      | undefined;
    const replay = (await send(nextUrl, OPERATOR, RESERVE, { input })).data?.[
      "reserveMachine"
    ] as typeof before;
    if (before?.__typename === "MachineReserved") {
      expect(replay).toEqual({ __typename: "AlreadyReserved", reservation: before.reservation });
    } else {
      expect(["MachineReserved", "AlreadyReserved", "SomeoneWasFaster"]).toContain(replay?.__typename);
    }
  }
});

test("a client that never finishes its request does not keep a server from ending", async () => {
  const server = holdfast([], { DATABASE_URL: database().url, HOLDFAST_SWEEP_SECONDS: "0" });
  const { port } = new URL(await server.served());
  const slow = connect(Number(port), "127.0.0.1");
  slow.on("error", () => undefined);
  await new Promise<void>((resolve) => slow.once("connect", resolve));
  slow.write(
    "POST /graphql HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{",
  );
  const closed = new Promise((resolve) => slow.once("close", resolve));
  await waitUntil(
    async () => (await fetch(`http://127.0.0.1:${port}/health`)).ok,
    "the server has read what was sent before",
  );
  server.child.kill("SIGTERM");
  await closed;
  expect(await server.ended()).toBe(0);
});

test("with DATABASE_URL a start migrates and adds no demo data; with HOLDFAST_MIGRATE=0 it refuses what is pending", async () => {
  const empty = await emptyDatabase();
  try {
    const refused = await run([], { DATABASE_URL: empty.url, HOLDFAST_MIGRATE: "0" });
    expect(refused.code).toBe(1);
    expect(refused.output).toMatch(/lacks \d+ migrations .*holdfast -- migrate/);
    expect((await run(["migrate", "--status"], { DATABASE_URL: empty.url })).code).toBe(3);
    const starts = [1, 2, 3].map(() =>
      holdfast([], { DATABASE_URL: empty.url, HOLDFAST_OPERATOR_TOKEN: OPERATOR }),
    );
    const urls = await Promise.all(starts.map((start) => start.served()));
    for (const url of urls) {
      expect(await send(url, OPERATOR, "{ sites { code } organizations { totalCount } }")).toEqual({
        data: { sites: [], organizations: { totalCount: 0 } },
      });
    }
  } finally {
    await stopAll();
    await empty.drop();
  }
});

test("a wrong environment is told line by line, with exit code 2, and no secret is repeated", async () => {
  const { code, output } = await run([], {
    PORT: "99999",
    HOLDFAST_HOLD_SECONDS: "soon",
    HOLDFAST_OPERATOR_TOKEN: "short",
    DATABASE_URL: "mysql://user:secret@host/db",
  });
  expect(code).toBe(2);
  for (const name of ["PORT", "HOLDFAST_HOLD_SECONDS", "HOLDFAST_OPERATOR_TOKEN", "DATABASE_URL"])
    expect(output).toContain(name);
  expect(output).not.toContain("secret");
  expect(output).not.toContain("short:");
});

test("usage: --help everywhere with 0, wrong usage with 2", async () => {
  for (const args of [
    ["--help"],
    ["serve", "--help"],
    ["worker", "--help"],
    ["migrate", "--help"],
    ["token", "--help"],
    ["token", "create", "--help"],
    ["import", "--help"],
  ]) {
    const { code, output } = await run(args);
    expect(code, args.join(" ")).toBe(0);
    expect(output).toContain("Usage:");
  }
  for (const args of [
    ["nonsense"],
    ["token", "create", "x"],
    ["token", "create", "x", "--role", "king"],
    ["import"],
  ]) {
    expect((await run(args)).code, args.join(" ")).toBe(2);
  }
});

test("import: 0 and a summary, 4 and a line a problem, 1 for a file that is not there; a dry run writes nothing", async () => {
  const environment = { DATABASE_URL: database().url };
  const good = join(directory, "good.csv");
  await writeFile(
    good,
    "asset_tag,site,manufacturer,model,cpu_cores,memory_gib,storage_gib\nCLI-1,CLI,Dell,R1,4,32,100\n",
  );
  const count = async () =>
    (
      await database().pool.query<{ n: number }>(
        "SELECT count(*)::integer AS n FROM machine WHERE asset_tag LIKE 'CLI-%'",
      )
    ).rows[0]?.n;
  const dry = await run(["import", good, "--dry-run"], environment);
  expect(dry).toMatchObject({ code: 0, output: expect.stringContaining("Would import: 1 created") });
  expect(await count()).toBe(0);
  expect(await run(["import", good], environment)).toMatchObject({
    code: 0,
    output: expect.stringContaining("Imported: 1 created, 0 updated, 0 unchanged; new sites: CLI."),
  });
  expect(await count()).toBe(1);
  const bad = join(directory, "bad.csv");
  await writeFile(
    bad,
    "asset_tag,site,manufacturer,model,cpu_cores,memory_gib,storage_gib\nCLI-2,CLI,Dell,R1,four,32,100\n",
  );
  expect(await run(["import", bad], environment)).toMatchObject({
    code: 4,
    output: expect.stringMatching(/line 2, column cpu_cores: must be a whole number/),
  });
  expect((await run(["import", join(directory, "missing.csv")], environment)).code).toBe(1);
  expect(await count()).toBe(1);
});

test("a signal during a command leaves no database server behind", async () => {
  const dataDir = join(directory, "signal");
  const importing = holdfast(["import", "/dev/stdin"], { HOLDFAST_DATA_DIR: dataDir });
  const lock = join(dataDir, "postgres", "postmaster.pid");
  await waitUntil(
    () =>
      stat(lock).then(
        () => true,
        () => false,
      ),
    "its server is up",
  );
  importing.child.kill("SIGINT");
  await importing.ended();
  await expect(stat(lock)).rejects.toThrow(/ENOENT/);
});

test("`npm start` passes SIGTERM on and ends with the server", async () => {
  const npm = spawn("npm", ["start"], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, DATABASE_URL: database().url, PORT: "0", HOLDFAST_SWEEP_SECONDS: "0" },
  });
  const ended = new Promise<number | null>((resolve) => npm.once("close", resolve));
  let output = "";
  for (const stream of [npm.stdout, npm.stderr])
    stream.on("data", (chunk: Buffer) => (output += chunk.toString()));
  await waitUntil(() => output.includes("Holdfast is at") || npm.exitCode !== null, "npm's server serves");
  npm.kill("SIGTERM");
  // The outputs close only when the server behind npm has ended as well.
  expect(await ended).toBe(0);
  expect(output).toContain('"msg":"stopped"');
});
