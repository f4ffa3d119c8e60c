import { once } from "node:events";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { Writable } from "node:stream";
import { exportJWK, generateKeyPair, SignJWT, UnsecuredJWT } from "jose";
import { pino } from "pino";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { type Config, configRead } from "../../src/config.ts";
import { databaseOpen } from "../../src/database/client.ts";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { requestScope } from "../../src/logging.ts";
import { apiOpen } from "../../src/server/http.ts";
import { servicesOpen, startApi, type TestApi } from "../support/api.ts";
import { useTestDatabase } from "../support/database.ts";
import { hold, machine, organizations, unique } from "../support/world.ts";

// The API as HTTP: what it lets in, what it keeps to itself, and how it says so.

const database = useTestDatabase();
const ALLOWED = "https://shop.example";
let api: TestApi;
let acme: string;
let slug: string;

beforeAll(async () => {
  api = await startApi(database().url, { allowedOrigins: [ALLOWED] });
  acme = (await organizations(database().pool, 1))[0] as string;
  const { rows } = await database().pool.query<{ slug: string }>(
    "SELECT slug FROM organization WHERE id = $1",
    [acme],
  );
  slug = (rows[0] as { slug: string }).slug;
});
afterAll(() => api.close());

const VIEWER = "{ viewer { role } }";
const OPERATOR_ANSWER = { data: { viewer: { role: "OPERATOR" } } };

interface Raw {
  readonly method?: string;
  readonly headers?: Record<string, string>;
  readonly body?: BodyInit;
  readonly query?: Record<string, string>;
  readonly token?: string | null;
}

/** Any HTTP request to the endpoint, by default with the operator's token. */
async function raw({ method = "GET", headers = {}, body, query = {}, token = api.operator }: Raw) {
  const url = new URL(api.url);
  for (const [name, value] of Object.entries(query)) url.searchParams.set(name, value);
  const response = await fetch(url, {
    method,
    headers: { ...(token === null ? {} : { authorization: `Bearer ${token}` }), ...headers },
    ...(body === undefined ? {} : { body }),
  });
  return { status: response.status, headers: response.headers, text: await response.text() };
}

const json = { "content-type": "application/json" };
const post = (body: unknown, headers: Record<string, string> = json) =>
  raw({ method: "POST", headers, body: JSON.stringify(body) });

async function siteExists(code: string): Promise<boolean> {
  return (await database().pool.query("SELECT FROM site WHERE code = $1", [code])).rowCount === 1;
}
const createSite = (code: string) =>
  `mutation { createSite(input: { code: "${code}", name: "n" }) { __typename } }`;

// ---------------------------------------------------------------- masking

/** An API whose log can be read, as it would run with this NODE_ENV. */
async function loggingApi(nodeEnv: string | undefined) {
  const lines: Record<string, unknown>[] = [];
  const log = pino(
    { level: "debug", mixin: () => requestScope.getStore() ?? {} },
    new Writable({
      write(chunk: Buffer, _encoding, done) {
        for (const line of chunk.toString().split("\n").filter(Boolean)) lines.push(JSON.parse(line));
        done();
      },
    }),
  );
  const before = process.env["NODE_ENV"];
  if (nodeEnv === undefined) delete process.env["NODE_ENV"];
  else process.env["NODE_ENV"] = nodeEnv;
  const opened = databaseOpen(database().url, {
    poolSize: 4,
    namedStatements: true,
    onError: () => undefined,
  });
  const config = configRead({ DATABASE_URL: database().url });
  const { services, end } = servicesOpen(opened.db, database().url, config, log);
  const server = apiOpen(services);
  server.server.listen(0, "127.0.0.1");
  await once(server.server, "listening");
  const origin = `http://127.0.0.1:${(server.server.address() as AddressInfo).port}`;
  return {
    origin,
    lines,
    async send(query: string, variables?: unknown, headers: Record<string, string> = {}) {
      const response = await fetch(`${origin}/graphql`, {
        method: "POST",
        headers: { ...json, authorization: `Bearer ${api.operator}`, ...headers },
        body: JSON.stringify({ query, variables }),
      });
      const text = await response.text();
      return {
        status: response.status,
        requestId: response.headers.get("x-request-id"),
        text,
        body: JSON.parse(text) as {
          data?: Record<string, unknown>;
          errors?: { message: string; path?: unknown; extensions: Record<string, unknown> }[];
        },
      };
    },
    async close() {
      if (before === undefined) delete process.env["NODE_ENV"];
      else process.env["NODE_ENV"] = before;
      await Promise.all([server.drain(), end()]);
      await opened.close();
    },
  };
}

/** Runs `work` while a table has another name, which no statement of the API expects. */
async function withBroken(table: string, work: () => Promise<void>): Promise<void> {
  const { pool } = database();
  await pool.query(`ALTER TABLE ${table} RENAME TO ${table}_away`);
  try {
    await work();
  } finally {
    await pool.query(`ALTER TABLE ${table}_away RENAME TO ${table}`);
  }
}

/** What must never reach a client. */
const LEAKS =
  /select|insert|relation|does not exist|42P01|constraint|prisma|postgres|127\.0\.0\.1:|\.ts\b|\bat .*\(|stack|node_modules/i;

describe.each([["production"], ["development"], [undefined]])("with NODE_ENV %s", (nodeEnv) => {
  let logging: Awaited<ReturnType<typeof loggingApi>>;
  beforeAll(async () => {
    logging = await loggingApi(nodeEnv);
  });
  afterAll(() => logging.close());

  test.each([
    ["a query", "site", "{ sites { id } }", "sites"],
    [
      "a nested field",
      "feature_override",
      "{ organizations { edges { node { featureEnabled(module: DATACENTER) } } } }",
      "organizations",
    ],
    ["a mutation by the model API", "site", createSite("MASKED"), "createSite"],
    [
      "a mutation in raw SQL",
      "api_token",
      'mutation { createApiToken(input: { name: "n", role: METER }) { __typename } }',
      null,
    ],
  ])("a driver's error in %s is masked, and its cause is in the log", async (_name, table, query, field) => {
    await withBroken(table, async () => {
      const start = logging.lines.length;
      const answer = await logging.send(query);
      expect(answer.body.errors).toHaveLength(1);
      const error = answer.body.errors?.[0];
      expect(error?.extensions).toEqual({
        code: "INTERNAL_SERVER_ERROR",
        requestId: answer.requestId,
      });
      expect(error?.message).toContain(answer.requestId);
      expect(answer.text).not.toMatch(LEAKS);
      if (field !== null) expect((error?.path as unknown[] | undefined)?.[0]).toBe(field);
      const logged = logging.lines
        .slice(start)
        .filter((line) => line["requestId"] === answer.requestId && line["level"] === 50);
      expect(JSON.stringify(logged)).toContain(table);
      expect(JSON.stringify(logged)).toMatch(/does not exist/);
      expect(JSON.stringify(logging.lines)).not.toContain(api.operator);
    });
  });

  test("an unrelated constraint is no business outcome: it is masked, and its name is in the log", async () => {
    const { pool } = database();
    await pool.query("ALTER TABLE site ADD CONSTRAINT site_never CHECK (code <> 'NEVER')");
    const answer = await logging.send(createSite("NEVER"));
    await pool.query("ALTER TABLE site DROP CONSTRAINT site_never");
    expect(answer.body.data).toEqual({ createSite: null });
    expect(answer.body.errors?.[0]?.extensions["code"]).toBe("INTERNAL_SERVER_ERROR");
    expect(answer.text).not.toMatch(LEAKS);
    expect(answer.text).not.toContain("site_never");
    expect(JSON.stringify(logging.lines)).toContain("site_never");
  });

  test("a request id that the caller sends is used, and one that is not clean is replaced", async () => {
    await withBroken("site", async () => {
      const given = await logging.send("{ sites { id } }", {}, { "x-request-id": "order-7.a_b" });
      expect(given.requestId).toBe("order-7.a_b");
      expect(given.body.errors?.[0]?.extensions["requestId"]).toBe("order-7.a_b");
      for (const bad of ["a b", "x".repeat(101), 'a"b']) {
        const replaced = await logging.send("{ sites { id } }", {}, { "x-request-id": bad });
        expect(replaced.requestId).toMatch(/^[0-9a-f-]{36}$/);
        expect(replaced.body.errors?.[0]?.extensions["requestId"]).toBe(replaced.requestId);
      }
    });
  });

  test("errors of the document and of its variables stay readable", async () => {
    const unknown = await logging.send("{ sites { nothing } }");
    expect(unknown.body.errors?.[0]).toMatchObject({
      message: expect.stringContaining('"nothing"'),
      extensions: { code: "GRAPHQL_VALIDATION_FAILED" },
    });
    const broken = await logging.send("{ sites {");
    expect(broken.body.errors?.[0]).toMatchObject({
      message: expect.stringContaining("Syntax Error"),
      extensions: { code: "GRAPHQL_PARSE_FAILED" },
    });
    const variable = await logging.send("query ($first: Int) { machines(first: $first) { totalCount } }", {
      first: "ten",
    });
    expect(variable.body.errors?.[0]).toMatchObject({
      message: expect.stringContaining("$first"),
      extensions: { code: "BAD_USER_INPUT" },
    });
    const ours = await logging.send("{ machines(first: -1) { totalCount } }");
    expect(ours.body.errors?.[0]).toMatchObject({
      message: expect.stringContaining("at least 0"),
      extensions: { code: "BAD_USER_INPUT", field: "first" },
    });
  });

  test("what clients get wrong is no error in the operator's log", async () => {
    const start = logging.lines.length;
    await logging.send("{ sites { nothing } }");
    await logging.send("{ sites {");
    await logging.send("{ machines(first: -1) { totalCount } }");
    const alarms = logging.lines.slice(start).filter((line) => (line["level"] as number) >= 50);
    expect(alarms).toEqual([]);
  });
});

// ---------------------------------------------------------------- several mutations in one document

test("a mutation that fails beside one that succeeded hides nothing of the latter", async () => {
  const code = unique("H33");
  // The first statement of `b` meets a driver's error, after `a` was committed.
  await withBroken("organization", async () => {
    const answer = await api.send(`mutation {
      a: createSite(input: { code: "${code}", name: "n" }) { ... on SiteCreated { site { code } } }
      b: createOrganization(input: { slug: "h33", name: "n" }) { __typename }
      c: createSite(input: { code: "${code}-c", name: "n" }) { __typename } }`);
    expect(answer.data).toEqual({
      a: { site: { code } },
      b: null,
      c: { __typename: "SiteCreated" },
    });
    expect(answer.errors).toHaveLength(1);
    expect(answer.errors?.[0]).toMatchObject({ path: ["b"], extensions: { code: "INTERNAL_SERVER_ERROR" } });
  });
  expect(await siteExists(code)).toBe(true);
});

test("bad input in one mutation leaves its neighbour's answer alone", async () => {
  const code = unique("H33");
  const answer = await api.send(`mutation {
    a: createSite(input: { code: "${code}", name: "n" }) { __typename }
    b: createSite(input: { code: "", name: "n" }) { __typename } }`);
  expect(answer.data).toEqual({ a: { __typename: "SiteCreated" }, b: null });
  expect(answer.errors?.[0]).toMatchObject({ path: ["b"], extensions: { field: "input.code" } });
});

test("a nested field that fails after the commit nulls its own mutation, and the key tells the id again", async () => {
  const { pool } = database();
  await pool.query("UPDATE rollout_switch SET enabled = true WHERE module = 'datacenter'");
  await machine(pool);
  const RESERVE = (key: string, selection: string) => `mutation {
    a: reserveMachine(input: { organizationId: "${globalIdEncode("Organization", acme)}", orderReference: "o", idempotencyKey: "${key}", requirements: {} }) {
      __typename ... on MachineReserved { reservation { ${selection} } } ... on AlreadyReserved { reservation { id } } }
    b: createSite(input: { code: "${key}", name: "n" }) { __typename } }`;
  const key = unique("h33");
  await withBroken("feature_override", async () => {
    // The switch is read by reserve_machine itself, so that one fails as a whole.
    const failed = await api.send(RESERVE(key, "id"));
    expect(failed.data).toEqual({ a: null, b: { __typename: "SiteCreated" } });
  });
  const first = await api.send<{ a: { reservation: { id: string } } }>(RESERVE(key, "id"));
  expect(first.data?.a).toMatchObject({ __typename: "MachineReserved" });
  const again = await api.send(RESERVE(key, "id"));
  expect(again.data?.["a"]).toEqual({
    __typename: "AlreadyReserved",
    reservation: { id: first.data?.a.reservation.id },
  });
});

// ---------------------------------------------------------------- methods, content types and origins

test("GET answers queries and refuses mutations with 405, before anything is written", async () => {
  const query = await raw({ query: { query: VIEWER } });
  expect(query.status).toBe(200);
  expect(JSON.parse(query.text)).toEqual(OPERATOR_ANSWER);
  const code = unique("GET");
  const mutation = await raw({ query: { query: createSite(code) } });
  expect(mutation.status).toBe(405);
  expect(mutation.headers.get("allow")).toContain("POST");
  const hidden = await raw({
    query: {
      query: `query Q ${VIEWER} mutation M { createSite(input: { code: "${code}", name: "n" }) { __typename } }`,
      operationName: "M",
    },
  });
  expect(hidden.status).toBe(405);
  expect(await siteExists(code)).toBe(false);
});

test("GET takes variables and an operation's name", async () => {
  const answer = await raw({
    query: {
      query:
        "query A($n: Int) { machines(first: $n) { pageInfo { hasNextPage } } } query B { viewer { role } }",
      operationName: "B",
      variables: JSON.stringify({ n: 1 }),
    },
  });
  expect(JSON.parse(answer.text)).toEqual(OPERATOR_ANSWER);
});

test.each(["PUT", "PATCH", "DELETE"])("%s is no method of this API", async (method) => {
  const code = unique(method);
  const answer = await raw({ method, headers: json, body: JSON.stringify({ query: createSite(code) }) });
  expect(answer.status).toBe(405);
  expect(await siteExists(code)).toBe(false);
});

test.each<[name: string, headers: Record<string, string>, body: (query: string) => BodyInit]>([
  ["text/plain", { "content-type": "text/plain" }, (query) => JSON.stringify({ query })],
  [
    "a form",
    { "content-type": "application/x-www-form-urlencoded" },
    (query) => new URLSearchParams({ query }).toString(),
  ],
  ["a graphql body", { "content-type": "application/graphql" }, (query) => query],
  [
    "multipart",
    {},
    (query) => {
      const form = new FormData();
      form.set("operations", JSON.stringify({ query }));
      form.set("map", "{}");
      return form;
    },
  ],
  ["no content type", {}, (query) => new Blob([JSON.stringify({ query })])],
  [
    "JSON that only looks like it",
    { "content-type": "text/plain; application/json" },
    (query) => JSON.stringify({ query }),
  ],
])("POST as %s is refused with 415 before anything runs", async (_name, headers, body) => {
  const code = unique("TYPE");
  const answer = await raw({ method: "POST", headers, body: body(createSite(code)) });
  expect(answer.status).toBe(415);
  expect(JSON.parse(answer.text).errors[0].message).toContain("application/json");
  expect(await siteExists(code)).toBe(false);
});

test.each(["application/json", "application/json; charset=utf-8"])("POST as %s works", async (type) => {
  const answer = await post({ query: VIEWER }, { "content-type": type });
  expect([answer.status, JSON.parse(answer.text)]).toEqual([200, OPERATOR_ANSWER]);
});

test("GET from a foreign page is refused, from its own origin and an allowed one it is answered", async () => {
  const query = { query: VIEWER };
  for (const origin of ["https://evil.example", "null", `${ALLOWED}.evil.example`, "not a url"]) {
    const refused = await raw({ query, headers: { origin } });
    expect(refused.status, origin).toBe(403);
    expect(refused.headers.get("access-control-allow-origin")).not.toBe(origin);
    expect(refused.text).not.toContain("OPERATOR");
  }
  for (const origin of [new URL(api.url).origin, ALLOWED]) {
    const answer = await raw({ query, headers: { origin } });
    expect([answer.status, JSON.parse(answer.text)], origin).toEqual([200, OPERATOR_ANSWER]);
  }
});

test("a foreign page that asks first is told no, an allowed one yes", async () => {
  const preflight = (origin: string) =>
    raw({
      method: "OPTIONS",
      token: null,
      headers: {
        origin,
        "access-control-request-method": "POST",
        "access-control-request-headers": "content-type, authorization",
      },
    });
  const yes = await preflight(ALLOWED);
  expect(yes.headers.get("access-control-allow-origin")).toBe(ALLOWED);
  expect(yes.headers.get("access-control-allow-credentials")).not.toBe("true");
  const no = await preflight("https://evil.example");
  expect(["*", "https://evil.example"]).not.toContain(no.headers.get("access-control-allow-origin"));
});

test("without allowed origins no page is let in", async () => {
  const closed = await startApi(database().url);
  const response = await fetch(closed.url, {
    method: "OPTIONS",
    headers: { origin: ALLOWED, "access-control-request-method": "POST" },
  });
  expect(response.headers.get("access-control-allow-origin")).toBeNull();
  await closed.close();
});

test("an array of requests is refused, and none of them runs", async () => {
  const code = unique("BATCH");
  const answer = await post([{ query: createSite(code) }, { query: createSite(`${code}-2`) }]);
  expect(answer.status).toBe(400);
  expect(JSON.parse(answer.text).errors).toHaveLength(1);
  expect(await siteExists(code)).toBe(false);
});

test.each([
  ["no JSON", "{"],
  ["null", "null"],
  ["a text", '"query"'],
  ["no query", "{}"],
  ["a query that is no text", '{"query": 5}'],
  ["variables that are no object", JSON.stringify({ query: VIEWER, variables: "x" })],
  [
    "an operation that is not there",
    JSON.stringify({ query: "query A { viewer { role } }", operationName: "B" }),
  ],
])("a body with %s is answered with 400 and errors, not with a crash", async (_name, body) => {
  const answer = await raw({
    method: "POST",
    headers: { ...json, accept: "application/graphql-response+json" },
    body,
  });
  expect(answer.status).toBe(400);
  const { errors, data } = JSON.parse(answer.text);
  expect(data).toBeUndefined();
  expect(errors).toHaveLength(1);
  expect(errors[0].extensions?.code).not.toBe("INTERNAL_SERVER_ERROR");
});

test("a body over a megabyte is refused with 413, one below it is read", async () => {
  const padded = (bytes: number) => post({ query: VIEWER, extensions: { padding: "x".repeat(bytes) } });
  expect((await padded(900_000)).status).toBe(200);
  const refused = await padded(1_000_001);
  expect(refused.status).toBe(413);
  expect(refused.text).not.toContain("OPERATOR");
});

test("the answer's media type and status follow the GraphQL-over-HTTP specification", async () => {
  const modern = { ...json, accept: "application/graphql-response+json" };
  const good = await post({ query: VIEWER }, modern);
  expect([good.status, good.headers.get("content-type")]).toEqual([
    200,
    expect.stringContaining("application/graphql-response+json"),
  ]);
  const legacy = await post({ query: VIEWER }, { ...json, accept: "application/json" });
  expect(legacy.headers.get("content-type")).toContain("application/json");
  expect((await post({ query: "{ sites {" }, modern)).status).toBe(400);
  expect((await post({ query: "{ nothing }" }, modern)).status).toBe(400);
  expect((await post({ query: "query ($id: ID!) { node(id: $id) { id } }" }, modern)).status).toBe(400);
  const partial = await post(
    { query: 'mutation { createSite(input: { code: "", name: "n" }) { __typename } }' },
    modern,
  );
  expect([partial.status, JSON.parse(partial.text).data]).toEqual([200, { createSite: null }]);
  expect((await post({ query: VIEWER, operationName: null, variables: null, extensions: null })).status).toBe(
    200,
  );
});

// ---------------------------------------------------------------- limits

/** machine → reservation → machine → … `levels` levels deep. */
function deep(levels: number): string {
  let inner = "id";
  for (let level = levels; level > 1; level--)
    inner =
      level === 2
        ? `... on Machine { ${inner} }`
        : `${level % 2 === 0 ? "machine" : "reservation"} { ${inner} }`;
  return `query ($id: ID!) { node(id: $id) { ${inner} } }`;
}

test("an honest document is admitted: 10 levels, 64 aliases, 2,000 tokens", async () => {
  const { pool } = database();
  const machineId = await machine(pool);
  const reservationId = await hold(pool, machineId, { organization: acme });
  const answer = await api.send(deep(11), { id: globalIdEncode("Machine", machineId) });
  expect(answer.errors).toBeUndefined();
  expect(JSON.stringify(answer.data)).toContain(globalIdEncode("Reservation", reservationId));

  const aliases = Array.from({ length: 64 }, (_, i) => `a${i}: sites { id code name }`).join(" ");
  const many = await api.send(`{ ${aliases} }`);
  expect(many.errors).toBeUndefined();
  expect(Object.keys(many.data ?? {})).toHaveLength(64);

  const parts =
    "id assetTag manufacturer model cpuCores memoryGib storageGib labels status availability location monthlyPriceCents site { id code name }";
  const nodes = Array.from({ length: 64 }, (_, i) => `a${i}: node(id: $id) { ... on Machine { ${parts} } }`);
  // 64 times 34 tokens.
  const long = await api.send(`query ($id: ID!) { ${nodes.join(" ")} }`, {
    id: globalIdEncode("Machine", machineId),
  });
  expect(long.errors).toBeUndefined();
  expect(Object.keys(long.data ?? {})).toHaveLength(64);
});

test("64 mutations in one document are admitted and all of them run", async () => {
  const code = unique("MANY");
  const calls = Array.from(
    { length: 64 },
    (_, i) =>
      `a${i}: createSite(input: { code: "${code}-${i}", name: "n" }) { ... on SiteCreated { site { id code } } ... on CodeTaken { message } }`,
  );
  const answer = await api.send(`mutation { ${calls.join(" ")} }`);
  expect(answer.errors).toBeUndefined();
  const { rowCount } = await database().pool.query("SELECT FROM site WHERE starts_with(code, $1)", [
    `${code}-`,
  ]);
  expect(rowCount).toBe(64);
});

test("a page of the documented size is admitted, written as a literal and as a variable", async () => {
  const rows = "totalCount edges { cursor node { id assetTag status availability } }";
  const variable = await api.send(`query ($n: Int) { machines(first: $n) { ${rows} } }`, { n: 1000 });
  expect(variable.errors).toBeUndefined();
  const literal = await api.send(`{ machines(first: 1000) { ${rows} } }`);
  expect(literal.errors).toBeUndefined();
  expect(literal.data).toEqual(variable.data);
});

const FRAGMENTS = Array.from(
  { length: 12 },
  (_, i) =>
    `fragment F${i} on Organization { ${i === 11 ? "id" : `a: __typename ${`...F${i + 1} `.repeat(3)}`} }`,
).join(" ");

test.each([
  ["deep nesting", deep(40)],
  [
    "deep nesting by fragments",
    `query ($id: ID!) { node(id: $id) { ...M0 } } ${Array.from({ length: 30 }, (_, i) => `fragment M${i} on Machine { reservation { machine { ${i === 29 ? "id" : `...M${i + 1}`} } } }`).join(" ")}`,
  ],
  ["200 aliases", `{ ${Array.from({ length: 200 }, (_, i) => `a${i}: sites { id }`).join(" ")} }`],
  ["10,000 tokens", `{ viewer { ${"role ".repeat(10_000)} } }`],
  ["1,000 directives", `{ viewer { role ${"@include(if: true) ".repeat(1000)} } }`],
  ["fragments that multiply", `{ organizations { edges { node { ...F0 } } } } ${FRAGMENTS}`],
  [
    "fragments that go round",
    "{ viewer { ...A } } fragment A on Viewer { role ...B } fragment B on Viewer { ...A }",
  ],
  [
    "many long lists",
    `{ ${Array.from({ length: 60 }, (_, i) => `a${i}: reservations(first: 1000) { edges { node { id organization { id } machine { id } } } }`).join(" ")} }`,
  ],
])("a bomb of %s is refused before anything runs", async (_name, query) => {
  let taken = 0;
  const count = () => {
    taken += 1;
  };
  api.database.pool.on("acquire", count);
  const answer = await api.send(query, { id: globalIdEncode("Machine", acme) });
  api.database.pool.off("acquire", count);
  expect(answer.errors?.length).toBeGreaterThan(0);
  expect(answer.data ?? null).toBeNull();
  for (const error of answer.errors ?? [])
    expect(error.extensions?.["code"]).not.toBe("INTERNAL_SERVER_ERROR");
  expect(taken, "at most the token is looked up").toBeLessThanOrEqual(1);
});

// ---------------------------------------------------------------- the other paths

test("/health and /ready say what they know, and the root leads to GraphiQL", async () => {
  const { origin } = new URL(api.url);
  const ask = async (path: string) => {
    const response = await fetch(origin + path, { redirect: "manual" });
    return { status: response.status, body: await response.text(), headers: response.headers };
  };
  expect(await ask("/health")).toMatchObject({ status: 200, body: '{"status":"ok"}' });
  expect(await ask("/ready")).toMatchObject({ status: 200, body: '{"status":"ready"}' });
  expect((await ask("/ready")).headers.get("cache-control")).toBe("no-store");
  const root = await ask("/");
  expect([root.status, root.headers.get("location")]).toEqual([302, "/graphql"]);
  expect((await ask("/nothing")).status).toBe(404);
  const page = await fetch(api.url, { headers: { accept: "text/html" } });
  expect(page.headers.get("content-type")).toContain("text/html");
  expect((await page.text()).toLowerCase()).toContain("graphiql");
});

test("/ready is 503 while the database does not answer, /health stays 200, and both tell nothing more", async () => {
  const gone = databaseOpen("postgresql://nobody@127.0.0.1:1/nothing", {
    poolSize: 1,
    namedStatements: true,
    onError: () => undefined,
  });
  const config = configRead({ DATABASE_URL: "postgresql://nobody@127.0.0.1:1/nothing" });
  const log = pino({ level: "silent" });
  const { services, end } = servicesOpen(gone.db, "postgresql://nobody@127.0.0.1:1/nothing", config, log);
  const dead = apiOpen(services);
  dead.server.listen(0, "127.0.0.1");
  await once(dead.server, "listening");
  const origin = `http://127.0.0.1:${(dead.server.address() as AddressInfo).port}`;
  const ready = await fetch(`${origin}/ready`);
  expect([ready.status, await ready.json()]).toEqual([503, { status: "database unavailable" }]);
  expect((await fetch(`${origin}/health`)).status).toBe(200);
  const graphql = await fetch(`${origin}/graphql`, {
    method: "POST",
    headers: { ...json, authorization: `Bearer ${api.operator}` },
    body: JSON.stringify({ query: VIEWER }),
  });
  const text = await graphql.text();
  expect(JSON.parse(text).errors[0].extensions).toEqual({
    code: "INTERNAL_SERVER_ERROR",
    requestId: graphql.headers.get("x-request-id"),
  });
  expect(text).not.toMatch(LEAKS);
  await Promise.all([dead.drain(), end()]);
  await gone.close();
});

// ---------------------------------------------------------------- JSON Web Tokens

describe("with a JWKS", () => {
  const ISSUER = "https://id.example";
  const AUDIENCE = "holdfast";
  let jwks: ReturnType<typeof createServer>;
  let guarded: TestApi;
  let rightKey: CryptoKey;
  let wrongKey: CryptoKey;

  beforeAll(async () => {
    const right = await generateKeyPair("ES256");
    rightKey = right.privateKey;
    wrongKey = (await generateKeyPair("ES256")).privateKey;
    const keys = [{ ...(await exportJWK(right.publicKey)), kid: "k1", alg: "ES256", use: "sig" }];
    jwks = createServer((_req, res) => {
      res.writeHead(200, json).end(JSON.stringify({ keys }));
    });
    jwks.listen(0, "127.0.0.1");
    await once(jwks, "listening");
    const jwt: Config["jwt"] = {
      jwksUrl: `http://127.0.0.1:${(jwks.address() as AddressInfo).port}/jwks.json`,
      issuer: ISSUER,
      audience: AUDIENCE,
    };
    guarded = await startApi(database().url, { jwt });
  });
  afterAll(async () => {
    await guarded.close();
    jwks.close();
  });

  const OPERATOR_CLAIMS = { sub: "ops@example", holdfast_role: "operator" };
  interface Wish {
    key?: CryptoKey;
    issuer?: string;
    audience?: string;
    expires?: string | null;
    notBefore?: string;
    kid?: string;
  }
  function signed(claims: Record<string, unknown>, wish: Wish = {}): Promise<string> {
    const token = new SignJWT(claims)
      .setProtectedHeader({ alg: "ES256", kid: wish.kid ?? "k1" })
      .setIssuer(wish.issuer ?? ISSUER)
      .setAudience(wish.audience ?? AUDIENCE);
    if (wish.expires !== null) token.setExpirationTime(wish.expires ?? "5m");
    if (wish.notBefore !== undefined) token.setNotBefore(wish.notBefore);
    return token.sign(wish.key ?? rightKey);
  }
  const who = (secret: string) =>
    guarded.send("{ viewer { role tokenName organization { slug } } }", {}, secret);

  test("a valid operator is an operator, under the token's subject", async () => {
    expect((await who(await signed(OPERATOR_CLAIMS))).data).toEqual({
      viewer: { role: "OPERATOR", tokenName: "ops@example", organization: null },
    });
    expect(
      (await guarded.send("{ fleet { machines } }", {}, await signed(OPERATOR_CLAIMS))).errors,
    ).toBeUndefined();
  });

  test("a valid tenant sees its own organization and no inventory", async () => {
    const token = await signed({ holdfast_role: "tenant", holdfast_organization: slug });
    expect((await who(token)).data).toEqual({
      viewer: { role: "TENANT", tokenName: "jwt", organization: { slug } },
    });
    const fleet = await guarded.send("{ fleet { machines } }", {}, token);
    expect(fleet.errors?.[0]?.extensions?.["code"]).toBe("FORBIDDEN");
  });

  test("opaque tokens go on working beside it", async () => {
    expect((await who(guarded.operator)).data).toMatchObject({ viewer: { role: "OPERATOR" } });
  });

  test.each<[string, () => Promise<string> | string]>([
    ["another key", () => signed(OPERATOR_CLAIMS, { key: wrongKey })],
    ["a key that the set does not have", () => signed(OPERATOR_CLAIMS, { kid: "k2" })],
    ["a deadline that has passed", () => signed(OPERATOR_CLAIMS, { expires: "-1m" })],
    ["no deadline", () => signed(OPERATOR_CLAIMS, { expires: null })],
    ["a beginning that has not come", () => signed(OPERATOR_CLAIMS, { notBefore: "5m" })],
    ["another issuer", () => signed(OPERATOR_CLAIMS, { issuer: "https://evil.example" })],
    ["another audience", () => signed(OPERATOR_CLAIMS, { audience: "somebody" })],
    ["no role", () => signed({ sub: "ops@example" })],
    ["an unknown role", () => signed({ holdfast_role: "root" })],
    ["a role that is no text", () => signed({ holdfast_role: ["operator"] })],
    ["a tenant without an organization", () => signed({ holdfast_role: "tenant" })],
    // As for opaque tokens: whoever acts for every organization belongs to none.
    ["an operator of an organization", () => signed({ ...OPERATOR_CLAIMS, holdfast_organization: slug })],
    [
      "an unknown organization",
      () => signed({ holdfast_role: "tenant", holdfast_organization: "nobody-knows-it" }),
    ],
    [
      "an operator's role and an unknown organization",
      () => signed({ ...OPERATOR_CLAIMS, holdfast_organization: "nobody-knows-it" }),
    ],
    [
      "an organization that is no slug",
      () => signed({ holdfast_role: "tenant", holdfast_organization: "a\u0000b" }),
    ],
    [
      "no signature (alg none)",
      () =>
        new UnsecuredJWT(OPERATOR_CLAIMS)
          .setIssuer(ISSUER)
          .setAudience(AUDIENCE)
          .setExpirationTime("5m")
          .encode(),
    ],
    [
      "a secret that is the public key (HS256)",
      () =>
        new SignJWT(OPERATOR_CLAIMS)
          .setProtectedHeader({ alg: "HS256", kid: "k1" })
          .setIssuer(ISSUER)
          .setAudience(AUDIENCE)
          .setExpirationTime("5m")
          .sign(new TextEncoder().encode("a secret that somebody guessed, long enough")),
    ],
    [
      "a payload that was changed",
      async () => {
        const [header, , signature] = (await signed(OPERATOR_CLAIMS)).split(".");
        const payload = (await signed({ holdfast_role: "operator", sub: "else" })).split(".")[1];
        return `${header}.${payload}.${signature}`;
      },
    ],
    ["three parts of nonsense", () => "a.b.c"],
    ["three empty parts", () => ".."],
  ])("a JWT with %s is nobody", async (_name, make) => {
    const answer = await who(await make());
    expect(answer.errors?.map((error) => error.extensions?.["code"])).toEqual(["UNAUTHENTICATED"]);
    expect(answer.data ?? null).toBeNull();
  });

  test("without a JWKS a JWT is nobody, however well it is signed", async () => {
    const answer = await api.send(VIEWER, {}, await signed(OPERATOR_CLAIMS));
    expect(answer.errors?.[0]?.extensions?.["code"]).toBe("UNAUTHENTICATED");
  });
});

test("variables by GET that are no JSON, and a document too deep to parse, are the client's mistakes: 400, nothing masked", async () => {
  const get = await fetch(`${api.url}?query=${encodeURIComponent("{viewer{role}}")}&variables=x`, {
    headers: { authorization: `Bearer ${api.operator}` },
  });
  expect(get.status).toBe(400);
  expect(await get.json()).toMatchObject({ errors: [{ extensions: { code: "BAD_REQUEST" } }] });
  const deep = await api.send(`{ nodes(ids: ${"[".repeat(1900)}${"]".repeat(1900)}) { id } }`);
  expect(JSON.stringify(deep.errors)).not.toContain("INTERNAL_SERVER_ERROR");
});

test("what variables ask for is bounded like what literals ask for: 20 full pages pass, 21 do not", async () => {
  const pages = (count: number) =>
    `query ($n: Int) { ${Array.from({ length: count }, (_, i) => `a${i}: machines(first: $n) { totalCount }`).join(" ")} }`;
  const pass = await api.send(pages(20), { n: 1000 });
  expect(pass.errors).toBeUndefined();
  const refused = await api.send(pages(21), { n: 1000 });
  expect(refused.errors?.map((error) => error.extensions?.["code"])).toEqual(["BAD_USER_INPUT"]);
  const counts = (count: number) =>
    `{ ${Array.from({ length: count }, (_, i) => `a${i}: allocationPreview(requirements: {minCpuCores: ${i}}) { eligible }`).join(" ")} }`;
  expect((await api.send(counts(64))).errors).toBeUndefined();
  expect((await api.send(counts(90))).errors?.[0]?.extensions).toEqual({
    code: "BAD_USER_INPUT",
    field: "requirements",
  });
});
