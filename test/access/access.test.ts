import { createHash, randomUUID } from "node:crypto";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { globalIdDecode, globalIdEncode } from "../../src/graphql/globalId.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { useTestDatabase } from "../support/database.ts";
import {
  CreateApiTokenDocument,
  CreateOrganizationDocument,
  OrganizationsDocument,
  type OrganizationsQuery,
  ReservationByIdDocument,
  ReserveMachineDocument,
  RevokeApiTokenDocument,
  SetFeatureOverrideDocument,
  SetHoldLimitDocument,
  SetRolloutSwitchDocument,
  ViewerDocument,
} from "../support/operations.ts";
import { clear, hold, machine, machines, order, organizations, switchSet, unique } from "../support/world.ts";

// Organizations, tokens, switches: who is who, and what is open for whom.

const database = useTestDatabase();
let api: TestApi;

beforeAll(async () => {
  api = await startApi(database().url);
});
afterAll(() => api.close());
beforeEach(async () => {
  await clear(database().pool);
  await database().pool.query("DELETE FROM feature_override");
  await switchSet(database().pool, "datacenter", true);
  await switchSet(database().pool, "publishing", false);
});

const organizationGid = (id: string) => globalIdEncode("Organization", id);
const create = async (slug: string, name = "Name") =>
  (await api.run(CreateOrganizationDocument, { input: { slug, name } })).createOrganization;
const slugCount = async (slug: string) =>
  (await database().pool.query("SELECT FROM organization WHERE slug = $1", [slug])).rowCount;

// ---------------------------------------------------------------- slugs

const A63 = "a".repeat(63);

test.each([
  ["plain", "acme-1", "acme-1"],
  ["one letter", "q", "q"],
  ["digits", "007", "007"],
  ["upper case, folded", "Admin", "admin"],
  ["upper case throughout", "ACME-EU", "acme-eu"],
  ["63 characters", A63, A63],
  ["hyphens within", "a--b", "a--b"],
])("OrganizationCreated: a slug that is %s", async (_name, slug, canonical) => {
  const result = await create(slug);
  expect(result).toMatchObject({ __typename: "OrganizationCreated", organization: { slug: canonical } });
  expect(await slugCount(canonical)).toBe(1);
});

test.each([
  ["empty", ""],
  ["blank", " "],
  ["beginning with a hyphen", "-a"],
  ["ending with a hyphen", "a-"],
  ["a hyphen", "-"],
  ["64 characters", "a".repeat(64)],
  ["an international label", "xn--80ak6aa92e"],
  ["an international label in upper case", "XN--80AK6AA92E"],
  ["Cyrillic that looks like Latin", "аdmin"],
  ["full-width", "ａｃｍｅ"],
  ["a dotted capital I", "İstanbul"],
  ["a Kelvin sign, which folds to k", "\u212Aelvin"],
  ["an accent", "café"],
  ["a combining accent", "cafe\u0301"],
  ["an emoji", "a😀b"],
  ["two labels", "a.b"],
  ["an underscore", "a_b"],
  ["a blank within", "a b"],
  ["a blank around", " acme "],
  ["a line feed at its end", "acme\n"],
  ["a NUL byte", "a\u0000b"],
  ["a zero-width space", "a\u200Bb"],
  ["half a surrogate pair", "a\ud800"],
])("SlugInvalid: a slug that is %s", async (_name, slug) => {
  const before = await database().pool.query("SELECT FROM organization");
  const result = await create(slug);
  expect(result).toMatchObject({
    __typename: "SlugInvalid",
    nextAction: "RENAME",
    retryAfterMs: null,
    message: expect.stringContaining("cannot be a slug"),
  });
  if (slug.isWellFormed()) expect(result).toMatchObject({ slug });
  expect((await database().pool.query("SELECT FROM organization")).rowCount).toBe(before.rowCount);
});

test("SlugTaken: with suggestions that are free, valid and not offered when they are taken", async () => {
  const slug = unique("taken");
  await create(slug);
  await create(`${slug}-2`);
  const result = await create(slug.toUpperCase());
  expect(result).toMatchObject({
    __typename: "SlugTaken",
    slug,
    nextAction: "RENAME",
    retryAfterMs: null,
    suggestions: [`${slug}-3`, `${slug}-4`, `${slug}-5`],
  });
  if (result?.__typename !== "SlugTaken") throw new Error("expected SlugTaken");
  for (const suggestion of result.suggestions)
    expect(await create(suggestion)).toMatchObject({ __typename: "OrganizationCreated" });
});

test("SlugTaken: a slug of 63 characters gets suggestions that are labels themselves", async () => {
  const slug = `${"b".repeat(60)}-cc`;
  await create(slug);
  const result = await create(slug);
  if (result?.__typename !== "SlugTaken") throw new Error("expected SlugTaken");
  expect(result.suggestions).toHaveLength(3);
  for (const suggestion of result.suggestions)
    expect(await create(suggestion)).toMatchObject({ __typename: "OrganizationCreated" });
});

test("one slug, eight creations at once: one OrganizationCreated, seven SlugTaken", async () => {
  const slug = unique("parallel");
  const results = await Promise.all(Array.from({ length: 8 }, () => create(slug)));
  const kinds = results.map((result) => result?.__typename).sort();
  expect(kinds).toEqual(["OrganizationCreated", ...Array.from({ length: 7 }, () => "SlugTaken")]);
  expect(await slugCount(slug)).toBe(1);
});

test("names are kept as they were written, whatever the script", async () => {
  const name = "Zürich 東京 😀 & <b>";
  const result = await create(unique("named"), name);
  expect(result).toMatchObject({ organization: { name } });
});

test("the list of organizations pages by slug, without gaps or repeats, and counts all", async () => {
  const slugs = Array.from({ length: 7 }, () => unique("listed"));
  for (const slug of slugs.toReversed()) await create(slug);
  const seen: string[] = [];
  let after: string | null = null;
  do {
    const answer: OrganizationsQuery = await api.run(OrganizationsDocument, { first: 2, after });
    const page = answer.organizations;
    const { rows } = await database().pool.query<{ total: number }>(
      "SELECT count(*)::integer AS total FROM organization",
    );
    expect(page.totalCount).toBe(rows[0]?.total);
    seen.push(...page.edges.map((edge) => edge.node.slug));
    after = page.pageInfo.hasNextPage ? (page.pageInfo.endCursor ?? null) : null;
  } while (after !== null);
  const { rows } = await database().pool.query<{ slug: string }>(
    "SELECT slug FROM organization ORDER BY slug",
  );
  expect(seen).toEqual(rows.map((row) => row.slug));
});

// ---------------------------------------------------------------- hold limit

const setLimit = async (organization: string, holdLimit: number | null) =>
  (
    await api.run(SetHoldLimitDocument, {
      input: { organizationId: organizationGid(organization), holdLimit },
    })
  ).setHoldLimit?.organization;
const reserve = async (organization: string, to: TestApi = api, secret?: string) =>
  (await to.run(ReserveMachineDocument, order(organization), secret)).reserveMachine;

test("an organization's hold limit overrides the configured one, and null follows it again", async () => {
  const limited = await startApi(database().url, { holdLimit: 1 });
  const [acme] = (await organizations(database().pool, 1)) as [string];
  await machines(database().pool, 4);
  expect(await reserve(acme, limited)).toMatchObject({ __typename: "MachineReserved" });
  expect(await reserve(acme, limited)).toMatchObject({ __typename: "HoldLimitReached", limit: 1 });
  expect(await setLimit(acme, 2)).toEqual({ id: organizationGid(acme), holdLimit: 2 });
  expect(await reserve(acme, limited)).toMatchObject({ __typename: "MachineReserved" });
  expect(await setLimit(acme, 0)).toMatchObject({ holdLimit: 0 });
  expect(await reserve(acme, limited)).toMatchObject({ __typename: "HoldLimitReached", limit: 0 });
  expect(await setLimit(acme, null)).toMatchObject({ holdLimit: null });
  expect(await reserve(acme, limited)).toMatchObject({ __typename: "HoldLimitReached", limit: 1 });
  await limited.close();
});

test("lowering a hold limit takes no hold away", async () => {
  const [acme] = (await organizations(database().pool, 1)) as [string];
  await machines(database().pool, 2);
  const reserved = await reserve(acme);
  if (reserved?.__typename !== "MachineReserved") throw new Error("expected a reservation");
  await setLimit(acme, 0);
  const { node } = await api.run(ReservationByIdDocument, { id: reserved.reservation.id });
  expect(node).toMatchObject({ state: "HELD" });
});

// ---------------------------------------------------------------- tokens

const createToken = async (
  role: "OPERATOR" | "STOREFRONT" | "TENANT" | "METER",
  organizationId: string | null = null,
  expiresAt: string | null = null,
) => {
  const { createApiToken } = await api.run(CreateApiTokenDocument, {
    input: { name: `a ${role}`, role, organizationId, expiresAt } as never,
  });
  if (createApiToken === null || createApiToken === undefined) throw new Error("no token");
  return createApiToken;
};
const revoke = async (tokenId: string) => {
  const { revokeApiToken } = await api.run(RevokeApiTokenDocument, { input: { tokenId } });
  if (revokeApiToken === null || revokeApiToken === undefined) throw new Error("not revoked");
  return revokeApiToken;
};
const viewer = async (secret: string, to: TestApi = api) =>
  to.send("{ viewer { role tokenName } }", {}, secret);

test.each([
  ["OPERATOR", false],
  ["STOREFRONT", false],
  ["TENANT", true],
  ["METER", true],
  ["METER", false],
] as const)("a %s token (of an organization: %s) works at once and says who it is", async (role, owned) => {
  const [acme] = (await organizations(database().pool, 1)) as [string];
  const token = await createToken(role, owned ? organizationGid(acme) : null);
  expect(token).toMatchObject({ name: `a ${role}`, secret: expect.stringMatching(/^holdfast_[\w-]{43}$/) });
  expect(globalIdDecode(token.id)?.type).toBe("ApiToken");
  const seen = await api.run(ViewerDocument, {}, token.secret);
  expect(seen.viewer).toMatchObject({
    role,
    tokenName: `a ${role}`,
    organization: owned ? { id: organizationGid(acme) } : null,
  });
});

test("a secret is stored only as its SHA-256, and no two are alike", async () => {
  const tokens = [await createToken("METER"), await createToken("METER")];
  expect(tokens[0]?.secret).not.toBe(tokens[1]?.secret);
  for (const { id, secret } of tokens) {
    const { rows } = await database().pool.query<{ hash: Buffer; line: string }>(
      "SELECT secret_sha256 AS hash, t::text AS line FROM api_token t WHERE id = $1",
      [globalIdDecode(id)?.id],
    );
    expect(rows[0]?.hash.equals(createHash("sha256").update(secret).digest())).toBe(true);
    expect(rows[0]?.line).not.toContain(secret);
    expect(rows[0]?.line).not.toContain(secret.replace("holdfast_", ""));
  }
});

test("a revoked token opens nothing from the next request on, on a second server too", async () => {
  const other = await startApi(database().url);
  const token = await createToken("OPERATOR");
  expect((await viewer(token.secret)).errors).toBeUndefined();
  expect((await viewer(token.secret, other)).errors).toBeUndefined();
  await revoke(token.id);
  for (const server of [other, api]) {
    const refused = await viewer(token.secret, server);
    expect(refused.errors?.map((error) => error.extensions?.["code"])).toEqual(["UNAUTHENTICATED"]);
  }
  await other.close();
});

test("revoking twice, and twice at once, answers with the same first instant", async () => {
  const token = await createToken("METER");
  const instant = async () => (await revoke(token.id)).revokedAt;
  const together = await Promise.all([instant(), instant(), instant()]);
  const later = await instant();
  expect(new Set([...together, later]).size).toBe(1);
  const { rows } = await database().pool.query<{ by_the_database: boolean }>(
    "SELECT revoked_at BETWEEN created_at AND clock_timestamp() AS by_the_database FROM api_token WHERE id = $1",
    [globalIdDecode(token.id)?.id],
  );
  expect(rows).toEqual([{ by_the_database: true }]);
});

test("a token's deadline is judged by the database's clock at each request", async () => {
  const { pool } = database();
  const token = await createToken("OPERATOR", null, "2999-01-01T00:00:00Z");
  expect((await viewer(token.secret)).errors).toBeUndefined();
  const id = globalIdDecode(token.id)?.id;
  await pool.query("UPDATE api_token SET expires_at = clock_timestamp() WHERE id = $1", [id]);
  const over = await viewer(token.secret);
  expect(over.errors?.[0]?.extensions?.["code"]).toBe("UNAUTHENTICATED");
  await pool.query("UPDATE api_token SET expires_at = clock_timestamp() + interval '1 day' WHERE id = $1", [
    id,
  ]);
  expect((await viewer(token.secret)).errors).toBeUndefined();
});

test.each([
  ["another scheme", (secret: string) => `Basic ${secret}`],
  ["no scheme", (secret: string) => secret],
  ["two tokens", (secret: string) => `Bearer ${secret} ${secret}`],
  ["a changed letter", (secret: string) => `Bearer ${secret.slice(0, -1)}!`],
  ["an empty token", () => "Bearer "],
  [
    "the hash instead of the secret",
    (secret: string) => `Bearer ${createHash("sha256").update(secret).digest("hex")}`,
  ],
])("an Authorization header with %s is nobody", async (_name, header) => {
  const response = await fetch(api.url, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: header(api.operator) },
    body: JSON.stringify({ query: "{ viewer { role } }" }),
  });
  const { errors } = (await response.json()) as { errors: { extensions: { code: string } }[] };
  expect(errors.map((error) => error.extensions.code)).toEqual(["UNAUTHENTICATED"]);
});

// ---------------------------------------------------------------- switches

describe("a module is open for an organization", () => {
  test.each([
    { open: false, override: null, enabled: false },
    { open: true, override: null, enabled: true },
    { open: false, override: true, enabled: true },
    { open: true, override: false, enabled: false },
  ])("switch $open, override $override: $enabled", async ({ open, override, enabled }) => {
    const [acme] = (await organizations(database().pool, 1)) as [string];
    await machine(database().pool);
    const { setRolloutSwitch } = await api.run(SetRolloutSwitchDocument, {
      input: { module: "DATACENTER", enabled: open },
    });
    expect(setRolloutSwitch).toEqual({ module: "DATACENTER", enabled: open });
    const { setFeatureOverride } = await api.run(SetFeatureOverrideDocument, {
      input: { organizationId: organizationGid(acme), module: "DATACENTER", enabled: override },
    });
    expect(setFeatureOverride?.organization).toEqual({
      id: organizationGid(acme),
      override,
      datacenter: enabled,
    });
    expect(await reserve(acme)).toMatchObject(
      enabled
        ? { __typename: "MachineReserved" }
        : { __typename: "ModuleDisabled", module: "DATACENTER", nextAction: "CONTACT_OPERATOR" },
    );
  });
});

test("an override belongs to one organization and one module, and null takes it away", async () => {
  const [acme, globex] = (await organizations(database().pool, 2)) as [string, string];
  const set = (enabled: boolean | null) =>
    api.run(SetFeatureOverrideDocument, {
      input: { organizationId: organizationGid(acme), module: "DATACENTER", enabled },
    });
  const see = async (organization: string) =>
    (
      await api.send<{ node: object }>(
        `query ($id: ID!) { node(id: $id) { ... on Organization { d: featureOverride(module: DATACENTER) p: featureOverride(module: PUBLISHING) open: featureEnabled(module: DATACENTER) } } }`,
        { id: organizationGid(organization) },
      )
    ).data?.node;
  await set(false);
  await set(false);
  expect(await see(acme)).toEqual({ d: false, p: null, open: false });
  expect(await see(globex)).toEqual({ d: null, p: null, open: true });
  await set(true);
  expect(await see(acme)).toEqual({ d: true, p: null, open: true });
  await set(null);
  await set(null);
  expect(await see(acme)).toEqual({ d: null, p: null, open: true });
});

test("setting a switch to what it is changes nothing, not even its instant", async () => {
  const { pool } = database();
  const changedAt = async () =>
    (await pool.query("SELECT changed_at::text FROM rollout_switch WHERE module = 'datacenter'")).rows;
  const before = await changedAt();
  await api.run(SetRolloutSwitchDocument, { input: { module: "DATACENTER", enabled: true } });
  expect(await changedAt()).toEqual(before);
  await api.run(SetRolloutSwitchDocument, { input: { module: "DATACENTER", enabled: false } });
  expect(await changedAt()).not.toEqual(before);
});

// ---------------------------------------------------------------- clocks (H28)

test("a hold's beginning and end are the database's, however wrong this process's clock is", async () => {
  const { pool } = database();
  const [acme] = (await organizations(pool, 1)) as [string];
  await machine(pool);
  const now = Date.now;
  // An hour and a half ahead: a hold of 15 minutes made or judged by this clock would be over.
  Date.now = () => now() + 5_400_000;
  try {
    const reserved = await reserve(acme);
    if (reserved?.__typename !== "MachineReserved") throw new Error("expected a reservation");
    const { rows } = await pool.query<{ right: boolean }>(
      `SELECT expires_at - held_at = interval '15 minutes' AND held_at <= clock_timestamp()
              AND held_at > clock_timestamp() - interval '10 minutes' AS right FROM reservation`,
    );
    expect(rows).toEqual([{ right: true }]);
    const { node } = await api.run(ReservationByIdDocument, { id: reserved.reservation.id });
    expect(node).toMatchObject({ state: "HELD" });
  } finally {
    Date.now = now;
  }
});

test("a hold reads EXPIRED at the database's deadline with no sweeper, however slow this process's clock is", async () => {
  const { pool } = database();
  const over = await hold(pool, await machine(pool), { endsIn: -0.000001 });
  const now = Date.now;
  Date.now = () => now() - 5_400_000;
  try {
    const { node } = await api.run(ReservationByIdDocument, { id: globalIdEncode("Reservation", over) });
    expect(node).toMatchObject({ state: "EXPIRED" });
    const { rows } = await pool.query("SELECT state FROM reservation");
    expect(rows, "nobody has touched the row").toEqual([{ state: "held" }]);
  } finally {
    Date.now = now;
  }
});

test("an unknown organization is told apart from nothing in the same words everywhere", async () => {
  const organizationId = organizationGid(randomUUID());
  const messages: unknown[] = [];
  for (const [name, input] of [
    ["setHoldLimit", { organizationId, holdLimit: 1 }],
    ["setFeatureOverride", { organizationId, module: "DATACENTER", enabled: true }],
    ["setFeatureOverride", { organizationId, module: "DATACENTER", enabled: null }],
    ["createApiToken", { organizationId, name: "n", role: "TENANT" }],
  ] as const) {
    const type = `${name[0]?.toUpperCase()}${name.slice(1)}Input`;
    const answer = await api.send(`mutation ($input: ${type}!) { ${name}(input: $input) { __typename } }`, {
      input,
    });
    expect(answer.errors?.[0]?.extensions).toEqual({
      code: "BAD_USER_INPUT",
      field: "input.organizationId",
    });
    messages.push(answer.errors?.[0]?.message);
  }
  expect(new Set(messages).size).toBe(1);
});
