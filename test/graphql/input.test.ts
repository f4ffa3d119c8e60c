import { randomUUID } from "node:crypto";
import {
  type GraphQLInputField,
  type GraphQLInputType,
  getNamedType,
  getNullableType,
  isEnumType,
  isInputObjectType,
  isListType,
  isRequiredInputField,
} from "graphql";
import { afterAll, beforeAll, expect, test } from "vitest";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { schema } from "../../src/graphql/schema.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { useTestDatabase } from "../support/database.ts";
import { project } from "../support/publishing.ts";
import { hold, machine, organizations, switchSet } from "../support/world.ts";

// Bad input of every kind, at every place where the schema takes input: it is named, and nothing is written.

const database = useTestDatabase();
let api: TestApi;
let acme: string;
let globex: string;

/** Valid inputs; the walk below replaces one value of them at a time. */
const VALID: Record<string, Record<string, unknown>> = {
  createOrganization: { slug: "valid-slug", name: "Valid" },
  setHoldLimit: { organizationId: globalIdEncode("Organization", randomUUID()), holdLimit: 1 },
  createApiToken: { name: "valid", role: "OPERATOR" },
  revokeApiToken: { tokenId: globalIdEncode("ApiToken", randomUUID()) },
  setRolloutSwitch: { module: "PUBLISHING", enabled: true },
  setFeatureOverride: {
    organizationId: globalIdEncode("Organization", randomUUID()),
    module: "PUBLISHING",
    enabled: true,
  },
  createSite: { code: "VALID", name: "Valid" },
  createMachine: {
    assetTag: "VALID",
    siteCode: "FRA",
    manufacturer: "Dell",
    model: "R450",
    cpuCores: 8,
    memoryGib: 64,
    storageGib: 1000,
    labels: ["nvme"],
  },
  setMachineStatus: { machineId: globalIdEncode("Machine", randomUUID()), status: "READY" },
  reserveMachine: { orderReference: "order", idempotencyKey: "key", requirements: {} },
  convertReservation: {
    reservationId: globalIdEncode("Reservation", randomUUID()),
    serviceReference: "service",
  },
  cancelReservation: { reservationId: globalIdEncode("Reservation", randomUUID()) },
  extendReservation: { reservationId: globalIdEncode("Reservation", randomUUID()) },
  releaseBinding: { bindingId: globalIdEncode("ServiceBinding", randomUUID()) },
  createRack: { siteCode: "FRA", name: "VALID", heightUnits: 42 },
  updateRack: { rackId: globalIdEncode("Rack", randomUUID()) },
  reserveRackUnits: {
    rackId: globalIdEncode("Rack", randomUUID()),
    heightUnits: 1,
    purpose: "valid",
    idempotencyKey: "key",
  },
  promoteRackReservation: {
    rackReservationId: globalIdEncode("RackReservation", randomUUID()),
    machineId: globalIdEncode("Machine", randomUUID()),
  },
  cancelRackReservation: { rackReservationId: globalIdEncode("RackReservation", randomUUID()) },
  removePlacement: { placementId: globalIdEncode("Placement", randomUUID()) },
  movePlacements: {
    moves: [
      {
        placementId: globalIdEncode("Placement", randomUUID()),
        rackId: globalIdEncode("Rack", randomUUID()),
        bottomUnit: 1,
      },
    ],
  },
  setMachineGeometry: { machineId: globalIdEncode("Machine", randomUUID()) },
  createProject: { name: "Valid" },
  publishApp: { projectId: globalIdEncode("Project", randomUUID()), slug: "valid-slug", source: "valid" },
  cancelPublish: { deploymentId: globalIdEncode("Deployment", randomUUID()), attempt: 1 },
};
/** A deployment that stands in the database. */
const DEPLOYMENT = randomUUID();

beforeAll(async () => {
  const { pool } = database();
  api = await startApi(database().url);
  [acme, globex] = (await organizations(pool, 2)) as [string, string];
  await switchSet(pool, "datacenter", true);
  // Something to hit by mistake: free machines, a hold of each organization, a binding.
  for (let index = 0; index < 6; index++) await machine(pool, { assetTag: `STOCK-${index}` });
  await hold(pool, await machine(pool), { organization: acme });
  await hold(pool, await machine(pool), { organization: acme });
  await hold(pool, await machine(pool), { organization: globex });
  const bound = await hold(pool, await machine(pool), { organization: globex });
  await pool.query("SELECT reservation_convert($1, NULL, 'svc', false)", [bound]);
  const projectId = await project(pool, acme);
  // One statement after the other in one transaction: a deployment is never without its attempt and event.
  await pool.query(`
    INSERT INTO deployment (id, project_id, slug, state, attempt, claimed_at, heartbeat_at, sequence)
    VALUES ('${DEPLOYMENT}', '${projectId}', 'standing', 'failed', 1, now(), now(), 1);
    INSERT INTO publish_attempt (deployment_id, number, state, slug, source, owner, finished_at)
    VALUES ('${DEPLOYMENT}', 1, 'failed', 'standing', 's', 'o', now());
    INSERT INTO deployment_event (deployment_id, sequence, message, slug, state, attempt)
    VALUES ('${DEPLOYMENT}', 1, 'm', 'standing', 'failed', 1);`);
  for (const mutation of ["reserveMachine", "createProject"]) {
    const valid = VALID[mutation] as Record<string, unknown>;
    valid["organizationId"] = globalIdEncode("Organization", acme);
  }
});
afterAll(() => api.close());

/** Rows and content of every table. */
async function tables(): Promise<Record<string, string>> {
  const { pool } = database();
  const { rows } = await pool.query<{ name: string }>(
    "SELECT tablename AS name FROM pg_tables WHERE schemaname = 'public' ORDER BY 1",
  );
  const found: Record<string, string> = {};
  for (const { name } of rows) {
    const { rows: sums } = await pool.query<{ sum: string }>(
      `SELECT count(*) || ' ' || coalesce(md5(string_agg(t::text, '|' ORDER BY t::text)), '') AS sum FROM ${name} t`,
    );
    found[name] = (sums[0] as { sum: string }).sum;
  }
  return found;
}

interface Wrong {
  readonly code: "BAD_USER_INPUT" | "GRAPHQL_VALIDATION_FAILED" | "GRAPHQL_PARSE_FAILED";
  /** Where the product itself judges; graphql-js names the place in its message. */
  readonly field?: string;
  readonly message?: string;
}

async function refused(query: string, variables: unknown, wrong: Wrong, secret?: string): Promise<void> {
  const before = await tables();
  const answer = await api.send(query, variables, secret);
  expect(answer.errors, JSON.stringify(answer.data)).toHaveLength(1);
  expect(answer.errors?.[0]?.extensions).toMatchObject({
    code: wrong.code,
    ...(wrong.field === undefined ? {} : { field: wrong.field }),
  });
  if (wrong.message !== undefined) expect(answer.errors?.[0]?.message).toContain(wrong.message);
  expect(Object.values(answer.data ?? {}).every((value) => value === null)).toBe(true);
  expect(await tables()).toEqual(before);
}

// ---------------------------------------------------------------- every input field of every mutation

/** A place where a mutation takes a scalar: the path within its input, and its type. */
interface Place {
  readonly mutation: string;
  readonly inputType: string;
  readonly path: readonly string[];
  readonly type: GraphQLInputType;
  readonly required: boolean;
  readonly list: boolean;
}

const MUTATIONS = Object.values(schema.getMutationType()?.getFields() ?? {});

const PLACES: Place[] = MUTATIONS.flatMap((mutation) => {
  const input = mutation.args[0];
  if (input === undefined) return [];
  const type = getNamedType(input.type);
  return places(mutation.name, type.name, type, []);
});

function places(mutation: string, inputType: string, type: GraphQLInputType, path: string[]): Place[] {
  if (!isInputObjectType(type)) return [];
  return Object.values(type.getFields()).flatMap((field: GraphQLInputField) => {
    const named = getNamedType(field.type);
    const here = [...path, field.name];
    // Of a list of inputs, the first one is walked.
    const inList = isListType(getNullableType(field.type)) ? ["0"] : [];
    if (isInputObjectType(named)) return places(mutation, inputType, named, [...here, ...inList]);
    return [
      {
        mutation,
        inputType,
        path: here,
        type: named,
        required: isRequiredInputField(field),
        list: isListType(getNullableType(field.type)),
      },
    ];
  });
}

/** A mutation's valid input with one value replaced. */
function withValue({ mutation, path }: Place, value: unknown): Record<string, unknown> {
  const input = structuredClone(VALID[mutation] ?? {});
  let at = input;
  for (const step of path.slice(0, -1)) at = at[step] as Record<string, unknown>;
  at[path.at(-1) as string] = value;
  return { input };
}

function without(place: Place): Record<string, unknown> {
  const variables = withValue(place, undefined);
  return JSON.parse(JSON.stringify(variables)) as Record<string, unknown>;
}

const documentOf = ({ mutation, inputType }: Place) =>
  `mutation ($input: ${inputType}!) { ${mutation}(input: $input) { __typename } }`;

test("every mutation has valid input here, and every one of its fields is walked", () => {
  expect(Object.keys(VALID).sort()).toEqual(MUTATIONS.map((mutation) => mutation.name).sort());
  expect(PLACES.length).toBeGreaterThan(35);
  expect(PLACES.map(({ mutation, path }) => [mutation, ...path].join("."))).toContain(
    "reserveMachine.requirements.labels",
  );
});

const BAD_TEXTS: [name: string, text: string][] = [
  ["an empty text", ""],
  ["a blank text", " \t\n "],
  ["10,000 characters", "x".repeat(10_000)],
  ["a NUL byte", "a\u0000b"],
  ["a control character", "a\u001b[31m"],
  ["half a surrogate pair", "a\ud800b"],
  ["the other half", "\udc00"],
];
const BAD_IDS: [name: string, text: string][] = [
  ["an empty id", ""],
  ["a bare uuid", randomUUID()],
  ["an id of another type", globalIdEncode("Site", randomUUID())],
  ["an id of a type that is none", globalIdEncode("Nothing", randomUUID())],
  ["a number for a uuid", globalIdEncode("Machine", "1")],
  ["an id with a NUL byte", "TWFjaGluZTo\u0000"],
  ["an id of 10,000 characters", "QQ==".repeat(2500)],
];
const BAD_NUMBERS: [name: string, number: number][] = [
  ["a negative number", -1],
  ["a number that is too large", 1_000_000_001],
];

function badValues(place: Place): { what: string; value: unknown; wrong: Wrong }[] {
  const { type, path, list } = place;
  const field = ["input", ...path].join(".");
  const ours = (name: string): Wrong => ({ code: "BAD_USER_INPUT", field: name });
  const theirs: Wrong = { code: "BAD_USER_INPUT", message: path.at(-1) as string };
  const cases: { what: string; value: unknown; wrong: Wrong }[] = [];
  const name = "name" in type ? type.name : "";
  if (name === "String") {
    // What is wrong with a slug is a refusal of its own, SlugInvalid, unless it is absurdly long.
    const texts = path[0] === "slug" ? [BAD_TEXTS[2]] : BAD_TEXTS;
    for (const [what, text] of texts as typeof BAD_TEXTS) {
      cases.push({
        what,
        value: list ? ["fine", text] : text,
        wrong: ours(list ? `${field}.1` : field),
      });
    }
    if (list)
      cases.push({
        what: "65 entries",
        value: Array.from({ length: 65 }, (_, i) => `l${i}`),
        wrong: ours(field),
      });
    cases.push({ what: "a number for a text", value: list ? [1] : 1, wrong: theirs });
  } else if (name === "ID") {
    for (const [what, value] of BAD_IDS) cases.push({ what, value, wrong: ours(field) });
    cases.push({ what: "an object for an id", value: { id: 1 }, wrong: theirs });
  } else if (name === "Int") {
    for (const [what, value] of BAD_NUMBERS) cases.push({ what, value, wrong: ours(field) });
    for (const value of [1.5, "8", 2 ** 31, true])
      cases.push({ what: `${JSON.stringify(value)} for an Int`, value, wrong: theirs });
  } else if (name === "DateTime") {
    cases.push({ what: "a past instant", value: "2020-01-01T00:00:00Z", wrong: ours(field) });
    cases.push({ what: "the first instant there is", value: "0000-01-01T00:00:00Z", wrong: ours(field) });
    for (const value of ["tomorrow", "2030-02-30T00:00:00Z", ""])
      cases.push({ what: `${JSON.stringify(value)} for a DateTime`, value, wrong: theirs });
  } else if (name === "Boolean") {
    for (const value of [1, "true"])
      cases.push({ what: `${JSON.stringify(value)} for a Boolean`, value, wrong: theirs });
  } else if (isEnumType(type)) {
    for (const value of ["NOTHING", "", type.getValues()[0]?.name.toLowerCase(), 1])
      cases.push({ what: `${JSON.stringify(value)} for a ${name}`, value, wrong: theirs });
  } else {
    throw new Error(`teach this test bad values of ${name}`);
  }
  if (place.required) cases.push({ what: "null", value: null, wrong: theirs });
  return cases;
}

test.each(
  PLACES.flatMap((place) =>
    badValues(place).map((bad) => ({ place, ...bad, name: [place.mutation, ...place.path].join(".") })),
  ),
)("$name refuses $what, and nothing is written", async ({ place, value, wrong }) => {
  await refused(documentOf(place), withValue(place, value), wrong);
});

test.each(
  PLACES.filter((place) => place.required).map((place) => ({
    place,
    name: [place.mutation, ...place.path].join("."),
  })),
)("$name is missed when it is left out", async ({ place }) => {
  await refused(documentOf(place), without(place), {
    code: "BAD_USER_INPUT",
    message: place.path.at(-1) as string,
  });
});

test.each(MUTATIONS.map(({ name }) => name))(
  "%s: unknown fields and arguments, missing variables and wrong literals are no business of the database",
  async (name) => {
    const mutation = MUTATIONS.find((candidate) => candidate.name === name);
    const type = getNamedType(mutation?.args[0]?.type as GraphQLInputType).name;
    const call = `mutation ($input: ${type}!) { ${name}(input: $input) { __typename } }`;
    await refused(call, {}, { code: "BAD_USER_INPUT", message: "$input" });
    await refused(call, { input: null }, { code: "BAD_USER_INPUT", message: "$input" });
    await refused(call, { input: "text" }, { code: "BAD_USER_INPUT", message: "$input" });
    await refused(
      call,
      { input: { ...VALID[name], extra: 1 } },
      { code: "BAD_USER_INPUT", message: "extra" },
    );
    await refused(
      `mutation ($input: ${type}!) { ${name}(input: $input, extra: 1) { __typename } }`,
      { input: VALID[name] },
      { code: "GRAPHQL_VALIDATION_FAILED", message: "extra" },
    );
    await refused(
      `mutation { ${name} { __typename } }`,
      {},
      {
        code: "GRAPHQL_VALIDATION_FAILED",
        message: "input",
      },
    );
    await refused(
      `mutation { ${name}(input: 5) { __typename } }`,
      {},
      { code: "BAD_USER_INPUT", message: type },
    );
    await refused(
      `mutation { ${name}(input: {`,
      {},
      { code: "GRAPHQL_PARSE_FAILED", message: "Syntax Error" },
    );
  },
);

// ---------------------------------------------------------------- inputs that fit alone and not together

const createToken =
  "mutation ($input: CreateApiTokenInput!) { createApiToken(input: $input) { __typename } }";
const unknownOrganization = globalIdEncode("Organization", randomUUID());

test.each([
  ["a TENANT token without an organization", { role: "TENANT" }, "input.organizationId"],
  [
    "an OPERATOR token of an organization",
    { role: "OPERATOR", organizationId: unknownOrganization },
    "input.organizationId",
  ],
  [
    "a STOREFRONT token of an organization",
    { role: "STOREFRONT", organizationId: unknownOrganization },
    "input.organizationId",
  ],
  [
    "a TENANT token of an unknown organization",
    { role: "TENANT", organizationId: unknownOrganization },
    "input.organizationId",
  ],
  [
    "a METER token of an unknown organization",
    { role: "METER", organizationId: unknownOrganization },
    "input.organizationId",
  ],
])("createApiToken refuses %s", async (_name, input, field) => {
  await refused(createToken, { input: { name: "n", ...input } }, { code: "BAD_USER_INPUT", field });
});

const RESERVE = "mutation ($input: ReserveMachineInput!) { reserveMachine(input: $input) { __typename } }";

test("reserveMachine refuses an order of nobody, of an unknown organization, and of another one", async () => {
  const input = { orderReference: "o", idempotencyKey: "k", requirements: {} };
  const wrong: Wrong = { code: "BAD_USER_INPUT", field: "input.organizationId" };
  const tenant = await api.token("tenant", acme);
  await refused(RESERVE, { input }, wrong);
  await refused(RESERVE, { input }, wrong, await api.token("storefront"));
  await refused(RESERVE, { input: { ...input, organizationId: unknownOrganization } }, wrong);
  await refused(RESERVE, { input: { ...input, organizationId: unknownOrganization } }, wrong, tenant);
  await refused(
    RESERVE,
    { input: { ...input, organizationId: globalIdEncode("Organization", globex) } },
    wrong,
    tenant,
  );
});

test.each([
  ["revokeApiToken", "input.tokenId"],
  ["setHoldLimit", "input.organizationId"],
  ["setFeatureOverride", "input.organizationId"],
  ["setMachineStatus", "input.machineId"],
])("%s refuses an id that names nothing", async (name, field) => {
  const place = PLACES.find(({ mutation }) => mutation === name) as Place;
  await refused(documentOf(place), { input: VALID[name] }, { code: "BAD_USER_INPUT", field });
});

test("requirements that match nothing are answered as such, never with any machine", async () => {
  const { rows } = await database().pool.query("SELECT id FROM reservation");
  const answer = await api.send(RESERVE, {
    input: {
      ...VALID["reserveMachine"],
      idempotencyKey: "nowhere",
      requirements: { siteCode: "NOWHERE" },
    },
  });
  expect(answer.data).toEqual({ reserveMachine: { __typename: "NothingAvailable" } });
  expect((await database().pool.query("SELECT id FROM reservation")).rows).toEqual(rows);
});

// ---------------------------------------------------------------- queries

const b64 = (value: unknown) => Buffer.from(JSON.stringify(value)).toString("base64url");
const uuid = randomUUID();

/** Every list, and cursors that look like its own. */
const LISTS: Record<string, { open: string; close: string; forged: unknown[] }> = {
  machines: {
    open: "machines(",
    close: ") { totalCount edges { cursor } }",
    forged: [
      ["machines", "*", 1],
      ["machines", "*", null],
      ["machines", "*", ["A"]],
      ["machines", "*", "a\u0000b"],
    ],
  },
  organizations: {
    open: "organizations(",
    close: ") { totalCount edges { cursor } }",
    forged: [
      ["organizations", "*", 1],
      ["organizations", "*", "x".repeat(64)],
      ["organizations", "*", "a\u0000b"],
    ],
  },
  reservations: {
    open: "reservations(",
    close: ") { totalCount edges { cursor } }",
    forged: [
      ["reservations", "*", ["1", "no uuid"]],
      ["reservations", "*", ["-1", uuid]],
      ["reservations", "*", ["99999999999999999999", uuid]],
      ["reservations", "*", [1, uuid]],
      ["reservations", "*", ["1", uuid, "more"]],
    ],
  },
  projects: {
    open: "projects(",
    close: ") { totalCount edges { cursor } }",
    forged: [
      ["projects", "*", ["name", "no uuid"]],
      ["projects", "*", ["a\u0000b", uuid]],
      ["projects", "*", ["x".repeat(201), uuid]],
      ["projects", "*", [1, uuid]],
      ["projects", "*", ["name"]],
    ],
  },
  attempts: {
    open: `node(id: "${globalIdEncode("Deployment", DEPLOYMENT)}") { ... on Deployment { attempts(`,
    close: ") { totalCount edges { cursor } } } }",
    forged: [
      ["attempts", DEPLOYMENT, 1.5],
      ["attempts", DEPLOYMENT, 2 ** 31],
      ["attempts", DEPLOYMENT, "1"],
      ["attempts", DEPLOYMENT, null],
      ["attempts", randomUUID(), 1],
    ],
  },
  candidates: {
    open: "allocationPreview(requirements: {}) { candidates(",
    close: ") { totalCount edges { cursor } } }",
    forged: [
      ["candidates", "*", [false, 2 ** 31, 1, 1, uuid]],
      ["candidates", "*", [false, 1.5, 1, 1, uuid]],
      ["candidates", "*", ["false", 1, 1, 1, uuid]],
      ["candidates", "*", [false, 1, 1, 1, "'; DROP TABLE machine; --"]],
      ["candidates", "*", [false, 1, 1, 1]],
    ],
  },
};
const asked = (list: string, args: string, declared = "") =>
  `query ${declared === "" ? "" : `(${declared})`} { ${LISTS[list]?.open}${args}${LISTS[list]?.close} }`;

test("every list of the schema is in the table", () => {
  const lists = Object.values(schema.getTypeMap()).flatMap((type) =>
    "getFields" in type && !isInputObjectType(type)
      ? Object.values(type.getFields())
          .filter((field) => "args" in field && field.args.some((arg) => arg.name === "first"))
          .map((field) => field.name)
      : [],
  );
  expect(lists.sort()).toEqual(Object.keys(LISTS).sort());
});

test.each(Object.keys(LISTS))("%s refuses negative sizes, and first beside last", async (list) => {
  await refused(asked(list, "first: -1"), {}, { code: "BAD_USER_INPUT", field: "first" });
  await refused(asked(list, "last: -1"), {}, { code: "BAD_USER_INPUT", field: "last" });
  await refused(asked(list, "first: 2, last: 2"), {}, { code: "BAD_USER_INPUT", field: "last" });
  await refused(
    asked(list, "first: $n", "$n: Int"),
    { n: 2 ** 31 },
    { code: "BAD_USER_INPUT", message: "$n" },
  );
  await refused(asked(list, "first: $n", "$n: Int"), { n: 1.5 }, { code: "BAD_USER_INPUT", message: "$n" });
});

test.each(
  Object.entries(LISTS).flatMap(([list, { forged }]) =>
    [
      ["an empty cursor", ""],
      ["a cursor that is no base64", "%%%"],
      ["a cursor that is no JSON", Buffer.from("machines").toString("base64url")],
      ["a cursor with a NUL byte", "\u0000"],
      ["a cursor with half a surrogate pair", "\ud800"],
      ["a cursor of 10,000 characters", "QUFB".repeat(2500)],
      ["a null cursor", b64(null)],
      ["an object for a cursor", b64({ list, owner: "*" })],
      ["a cursor of no list", b64(["nothing", "*", "A"])],
      ["a cursor of another owner", b64([list, globex, "A"])],
      ...forged.map((cursor) => [`the forged cursor ${JSON.stringify(cursor)}`, b64(cursor)]),
    ].map(([what, cursor]) => ({ list, what, cursor })),
  ),
)("$list refuses $what", async ({ list, cursor }) => {
  for (const field of ["after", "before"]) {
    await refused(
      asked(list, `${field}: $cursor`, "$cursor: String"),
      { cursor },
      { code: "BAD_USER_INPUT", field },
    );
  }
});

test("a cursor of one list is refused by every other, and understood by its own", async () => {
  const cursors: Record<string, string> = {};
  for (const list of Object.keys(LISTS)) {
    const answer = await api.send(asked(list, "first: 1"));
    const cursor = /"cursor":"([^"]+)"/.exec(JSON.stringify(answer.data))?.[1];
    expect(cursor, list).toBeDefined();
    cursors[list] = cursor as string;
  }
  for (const list of Object.keys(LISTS)) {
    for (const [source, cursor] of Object.entries(cursors)) {
      const query = asked(list, "after: $cursor", "$cursor: String");
      if (source === list) expect((await api.send(query, { cursor })).errors).toBeUndefined();
      else await refused(query, { cursor }, { code: "BAD_USER_INPUT", field: "after" });
    }
  }
});

test("a cursor of another organization's list is refused, whoever sends it", async () => {
  const query =
    "query ($organizationId: ID, $after: String) { reservations(organizationId: $organizationId, first: 1, after: $after) { edges { cursor } } }";
  const cursorOf = async (organization: string) => {
    const answer = await api.send<{ reservations: { edges: { cursor: string }[] } }>(query, {
      organizationId: globalIdEncode("Organization", organization),
    });
    return answer.data?.reservations.edges[0]?.cursor as string;
  };
  const [mine, theirs] = [await cursorOf(acme), await cursorOf(globex)];
  const tenant = await api.token("tenant", acme);
  const wrong: Wrong = { code: "BAD_USER_INPUT", field: "after" };
  expect((await api.send(query, { after: mine }, tenant)).errors).toBeUndefined();
  await refused(query, { after: theirs }, wrong, tenant);
  await refused(query, { after: theirs, organizationId: globalIdEncode("Organization", acme) }, wrong);
  await refused(query, { after: theirs }, wrong);
});

const PREVIEW = "query ($r: MachineRequirements!) { allocationPreview(requirements: $r) { considered } }";
const MACHINES = "query ($f: MachineFilter) { machines(filter: $f) { totalCount } }";

test.each(
  [
    ...["siteCode", "manufacturer", "model"].map((field) => ({
      query: PREVIEW,
      variable: "r",
      prefix: "requirements.",
      field,
    })),
    ...["siteCode", "manufacturer", "search"].map((field) => ({
      query: MACHINES,
      variable: "f",
      prefix: "filter.",
      field,
    })),
    {
      query: "query ($s: String) { fleet(siteCode: $s) { machines } }",
      variable: "s",
      prefix: "",
      field: "siteCode",
    },
  ].flatMap((at) => BAD_TEXTS.map(([what, value]) => ({ ...at, what, value, place: at.prefix + at.field }))),
)("a query's $place refuses $what", async ({ query, variable, prefix, field, value }) => {
  const variables = { [variable]: prefix === "" ? value : { [field]: value } };
  await refused(query, variables, { code: "BAD_USER_INPUT", field: `${prefix}${field}` });
});

test.each(["minCpuCores", "minMemoryGib", "minStorageGib"])(
  "the preview's %s refuses sizes out of bounds",
  async (field) => {
    for (const [, value] of BAD_NUMBERS)
      await refused(
        PREVIEW,
        { r: { [field]: value } },
        { code: "BAD_USER_INPUT", field: `requirements.${field}` },
      );
  },
);

test.each(BAD_IDS)("node and nodes refuse %s, or find nothing where it is well formed", async (what, id) => {
  const one = "query ($id: ID!) { node(id: $id) { id } }";
  const two = "query ($ids: [ID!]!) { nodes(ids: $ids) { id } }";
  if (what.startsWith("an id of another type") || what.startsWith("an id of a type")) {
    expect(await api.send(one, { id })).toMatchObject({ data: { node: null }, errors: undefined });
    return;
  }
  await refused(one, { id }, { code: "BAD_USER_INPUT", field: "id" });
  await refused(two, { ids: [globalIdEncode("Site", uuid), id] }, { code: "BAD_USER_INPUT", field: "ids.1" });
});

test("nodes refuses more than 100 ids, and takes 100 and none", async () => {
  const query = "query ($ids: [ID!]!) { nodes(ids: $ids) { id } }";
  const ids = Array.from({ length: 101 }, () => globalIdEncode("Machine", randomUUID()));
  await refused(query, { ids }, { code: "BAD_USER_INPUT", field: "ids" });
  expect((await api.send<{ nodes: null[] }>(query, { ids: ids.slice(1) })).data?.nodes).toHaveLength(100);
  expect((await api.send(query, { ids: [] })).data).toEqual({ nodes: [] });
});

test.each(BAD_IDS)(
  "the list of reservations refuses %s as an organization",
  async (_what, organizationId) => {
    await refused(
      "query ($organizationId: ID) { reservations(organizationId: $organizationId) { totalCount } }",
      { organizationId },
      { code: "BAD_USER_INPUT", field: "organizationId" },
    );
  },
);

test.each([
  ["an unknown enum literal", "{ reservations(state: NOTHING) { totalCount } }", "BAD_USER_INPUT", "NOTHING"],
  ["a text for an enum", '{ reservations(state: "HELD") { totalCount } }', "BAD_USER_INPUT", "HELD"],
  [
    "an unknown filter field",
    '{ machines(filter: { sitecode: "FRA" }) { totalCount } }',
    "BAD_USER_INPUT",
    "sitecode",
  ],
  [
    "an unknown requirement",
    '{ allocationPreview(requirements: { site: "FRA" }) { eligible } }',
    "BAD_USER_INPUT",
    "site",
  ],
  ["an unknown argument", '{ sites(code: "FRA") { id } }', "GRAPHQL_VALIDATION_FAILED", "code"],
  ["an unknown field", "{ sites { nothing } }", "GRAPHQL_VALIDATION_FAILED", "nothing"],
  ["a missing argument", "{ allocationPreview { eligible } }", "GRAPHQL_VALIDATION_FAILED", "requirements"],
  ["a missing selection", "{ sites }", "GRAPHQL_VALIDATION_FAILED", "sites"],
  ["a variable that is nowhere declared", "{ node(id: $id) { id } }", "GRAPHQL_VALIDATION_FAILED", "$id"],
  ["no document", "", "GRAPHQL_PARSE_FAILED", ""],
] as const)("a query with %s is refused with a readable message", async (_name, query, code, message) => {
  await refused(query, {}, { code, message });
});
