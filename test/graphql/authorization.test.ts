import { randomUUID } from "node:crypto";
import {
  type GraphQLField,
  type GraphQLInputType,
  getNamedType,
  isCompositeType,
  isEnumType,
  isInputObjectType,
  isInterfaceType,
  isListType,
  isNonNullType,
  isRequiredArgument,
  isRequiredInputField,
} from "graphql";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { secretHash } from "../../src/access/tokens.ts";
import { TOKEN_ROLES, type TokenRole } from "../../src/access/viewer.ts";
import { globalIdDecode, globalIdEncode } from "../../src/graphql/globalId.ts";
import { schema } from "../../src/graphql/schema.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { useTestDatabase } from "../support/database.ts";
import { project, slug } from "../support/publishing.ts";
import { clear, hold, machine, organizations, rack, switchSet, unique } from "../support/world.ts";

// Who may do what, walked over the schema: what is new fails here until somebody has decided.

/** The one matrix: which roles each root field lets in. */
const MATRIX: Record<string, readonly TokenRole[]> = {
  "Query.viewer": ["operator", "storefront", "tenant", "meter"],
  "Query.node": ["operator", "storefront", "tenant", "meter"],
  "Query.nodes": ["operator", "storefront", "tenant", "meter"],
  "Query.organizations": ["operator", "storefront", "tenant"],
  "Query.sites": ["operator", "storefront", "tenant"],
  "Query.machines": ["operator"],
  "Query.allocationPreview": ["operator", "storefront", "tenant"],
  "Query.fleet": ["operator"],
  "Query.reservations": ["operator", "storefront", "tenant"],
  "Query.sweeper": ["operator"],
  "Query.projects": ["operator", "tenant"],
  "Query.racks": ["operator"],
  "Query.rackSpace": ["operator"],
  "Mutation.createOrganization": ["operator"],
  "Mutation.setHoldLimit": ["operator"],
  "Mutation.createApiToken": ["operator"],
  "Mutation.revokeApiToken": ["operator"],
  "Mutation.setRolloutSwitch": ["operator"],
  "Mutation.setFeatureOverride": ["operator"],
  "Mutation.createSite": ["operator"],
  "Mutation.createMachine": ["operator"],
  "Mutation.setMachineStatus": ["operator"],
  "Mutation.reserveMachine": ["operator", "storefront", "tenant"],
  "Mutation.convertReservation": ["operator", "storefront", "tenant"],
  "Mutation.cancelReservation": ["operator", "storefront", "tenant"],
  "Mutation.extendReservation": ["operator", "storefront", "tenant"],
  "Mutation.releaseBinding": ["operator", "storefront", "tenant"],
  "Mutation.createRack": ["operator"],
  "Mutation.updateRack": ["operator"],
  "Mutation.reserveRackUnits": ["operator"],
  "Mutation.promoteRackReservation": ["operator"],
  "Mutation.cancelRackReservation": ["operator"],
  "Mutation.removePlacement": ["operator"],
  "Mutation.movePlacements": ["operator"],
  "Mutation.setMachineGeometry": ["operator"],
  "Mutation.createProject": ["operator", "tenant"],
  "Mutation.publishApp": ["operator", "tenant"],
  "Mutation.cancelPublish": ["operator", "tenant"],
  "Subscription.deploymentEvents": ["operator", "tenant"],
};

/** Which type the id in an argument or input field of this name names. */
const ID_TYPES: Record<string, string> = {
  id: "Reservation",
  ids: "Reservation",
  organizationId: "Organization",
  tokenId: "ApiToken",
  machineId: "Machine",
  reservationId: "Reservation",
  bindingId: "ServiceBinding",
  projectId: "Project",
  rackId: "Rack",
  rackReservationId: "RackReservation",
  placementId: "Placement",
  deploymentId: "Deployment",
};

/** Node types that belong to nobody: everyone who may reserve sees all of them. */
const SHARED = ["Site"];
/** Node types that only operators see. */
const INTERNAL = ["Rack", "RackReservation", "Placement"];

/** Makes an object of this organization for every other Node type, and returns its uuid. */
const FACTORIES: Record<string, (organization: string) => Promise<string>> = {
  Organization: async (organization) => organization,
  Machine: async (organization) => {
    const id = await machine(database().pool);
    await hold(database().pool, id, { organization });
    return id;
  },
  Reservation: async (organization) =>
    hold(database().pool, await machine(database().pool), { organization }),
  ServiceBinding: async (organization) => {
    const reservation = await hold(database().pool, await machine(database().pool), { organization });
    await database().pool.query("SELECT reservation_convert($1, NULL, 'svc', false)", [reservation]);
    const { rows } = await database().pool.query<{ id: string }>(
      "SELECT id FROM service_binding WHERE reservation_id = $1",
      [reservation],
    );
    return (rows[0] as { id: string }).id;
  },
  Rack: async () => (await placed()).rackId,
  RackReservation: async () => (await placed()).placementId,
  Placement: async () => (await placed()).placementId,
  Project: (organization) => project(database().pool, organization),
  Deployment: async (organization) => (await claimed(organization)).deployment_id,
  PublishAttempt: async (organization) => (await claimed(organization)).attempt_id,
};

/** A machine that stands in a rack. */
async function placed(): Promise<{ rackId: string; placementId: string }> {
  const { pool } = database();
  const machineId = await machine(pool);
  const rackId = await rack(pool);
  const { rows } = await pool.query<{ id: string }>(
    "SELECT reservation_id AS id FROM rack_reserve($1, 1, NULL, 'front', 'full', 0, 'p', $2, '{}', 900)",
    [rackId, unique("key")],
  );
  const placementId = (rows[0] as { id: string }).id;
  await pool.query("SELECT rack_promote($1, $2)", [placementId, machineId]);
  return { rackId, placementId };
}

/** A publish that nobody carries out. */
async function claimed(organization: string): Promise<{ deployment_id: string; attempt_id: string }> {
  const { rows } = await database().pool.query<{ deployment_id: string }>(
    "SELECT (d).id AS deployment_id FROM publish_claim(gen_random_uuid(), $1, NULL, $2, 'source', 'nobody', 300, 7200, 0)",
    [await project(database().pool, organization), slug()],
  );
  const { deployment_id } = rows[0] as { deployment_id: string };
  const attempts = await database().pool.query<{ attempt_id: string }>(
    "SELECT id AS attempt_id FROM publish_attempt WHERE deployment_id = $1",
    [deployment_id],
  );
  return { deployment_id, attempt_id: (attempts.rows[0] as { attempt_id: string }).attempt_id };
}

const database = useTestDatabase();
let api: TestApi;
let acme: string;
let globex: string;
const secrets = new Map<TokenRole, string>();
const secretOf = (role: TokenRole) => secrets.get(role) as string;

beforeAll(async () => {
  api = await startApi(database().url);
  [acme, globex] = (await organizations(database().pool, 2)) as [string, string];
  secrets.set("operator", api.operator);
  secrets.set("storefront", await api.token("storefront"));
  secrets.set("tenant", await api.token("tenant", acme));
  secrets.set("meter", await api.token("meter", globex));
});
afterAll(() => api.close());
beforeEach(async () => {
  await clear(database().pool);
  await switchSet(database().pool, "datacenter", true);
  await switchSet(database().pool, "publishing", true);
});

interface RootField {
  readonly name: string;
  readonly operation: "query" | "mutation" | "subscription";
  readonly field: GraphQLField<unknown, unknown>;
}

const ROOT_FIELDS: RootField[] = [
  { type: schema.getQueryType(), operation: "query" as const },
  { type: schema.getMutationType(), operation: "mutation" as const },
  { type: schema.getSubscriptionType(), operation: "subscription" as const },
].flatMap(({ type, operation }) =>
  Object.values(type?.getFields() ?? {}).map((field) => ({
    name: `${type?.name}.${field.name}`,
    operation,
    field,
  })),
);

/** A valid value for a type; `at` is the name of the argument or input field. */
function sample(type: GraphQLInputType, at: string): unknown {
  if (isNonNullType(type)) return sample(type.ofType, at);
  if (isListType(type)) return [sample(type.ofType, at)];
  if (isEnumType(type)) return type.getValues()[0]?.name;
  if (isInputObjectType(type)) {
    return Object.fromEntries(
      Object.values(type.getFields())
        .filter(isRequiredInputField)
        .map((field) => [field.name, sample(field.type, field.name)]),
    );
  }
  switch (type.name) {
    case "ID":
      return globalIdEncode(idType(at), randomUUID());
    case "Int":
      return 1;
    case "Boolean":
      return true;
    case "String":
      return unique(at.toLowerCase());
    default:
      throw new Error(`teach this test a value of the scalar ${type.name}`);
  }
}

function idType(at: string): string {
  const type = ID_TYPES[at];
  if (type === undefined) throw new Error(`say in ID_TYPES which type the id "${at}" names`);
  return type;
}

/** The smallest document that asks for a root field, with variables that fit. */
function minimal({ operation, field }: RootField, extra: Record<string, unknown> = {}) {
  const args = field.args.filter((arg) => isRequiredArgument(arg) || arg.name in extra);
  const declared = args.map((arg) => `$${arg.name}: ${arg.type}`).join(", ");
  const passed = args.map((arg) => `${arg.name}: $${arg.name}`).join(", ");
  const selection = isCompositeType(getNamedType(field.type)) ? " { __typename }" : "";
  return {
    query: `${operation}${declared === "" ? "" : `(${declared})`} { ${field.name}${passed === "" ? "" : `(${passed})`}${selection} }`,
    variables: {
      ...Object.fromEntries(args.map((arg) => [arg.name, sample(arg.type, arg.name)])),
      ...extra,
    },
  };
}

/** What a client sees, and nothing that differs from one request to the next. */
async function whole(query: string, variables: unknown, secret: string | null) {
  const { status, data, errors } = await api.send(query, variables, secret);
  return { status, data, errors };
}

const codesOf = (answer: {
  errors: { extensions?: Record<string, unknown> }[] | readonly unknown[] | undefined;
}) => (answer.errors ?? []).map((error) => (error as { extensions?: { code?: unknown } }).extensions?.code);

test("every root field stands in the matrix, and nothing else does", () => {
  expect(ROOT_FIELDS.map(({ name }) => name).sort()).toEqual(Object.keys(MATRIX).sort());
});

test.each(ROOT_FIELDS)("$name: nobody gets in without a token that is valid now", async (root) => {
  const { query, variables } = minimal(root);
  const { pool } = database();
  const expired = unique("expired-secret");
  const revoked = unique("revoked-secret");
  await pool.query(
    `INSERT INTO api_token (name, role, secret_sha256, expires_at, revoked_at)
     VALUES ('expired', 'operator', $1, clock_timestamp() - interval '1 microsecond', NULL), ('revoked', 'operator', $2, NULL, clock_timestamp())`,
    [secretHash(expired), secretHash(revoked)],
  );
  const answers = [];
  for (const secret of [null, unique("unknown-secret"), expired, revoked]) {
    answers.push(await whole(query, variables, secret));
  }
  for (const answer of answers) {
    expect(codesOf(answer)).toEqual(["UNAUTHENTICATED"]);
    expect(Object.values(answer.data ?? {}).every((value) => value === null)).toBe(true);
    expect(answer, "one answer for all, so that none tells which tokens exist").toEqual(answers[0]);
  }
});

test.each(ROOT_FIELDS.flatMap((root) => TOKEN_ROLES.map((role) => ({ root, role, name: root.name }))))(
  "$name lets a $role in exactly as the matrix says",
  async ({ root, role, name }) => {
    const { query, variables } = minimal(root);
    const answer = await whole(query, variables, secretOf(role));
    if (MATRIX[name]?.includes(role)) {
      const codes = codesOf(answer);
      expect(codes.filter((code) => code !== "BAD_USER_INPUT")).toEqual([]);
      if (codes.length === 0) expect(answer.data).toHaveProperty(root.field.name);
    } else {
      expect(codesOf(answer)).toEqual(["FORBIDDEN"]);
      expect(Object.values(answer.data ?? {}).every((value) => value === null)).toBe(true);
    }
  },
);

// ---------------------------------------------------------------- nodes

const nodeInterface = schema.getType("Node");
const NODE_TYPES = isInterfaceType(nodeInterface)
  ? schema.getPossibleTypes(nodeInterface).map((type) => type.name)
  : [];
const OWNED_TYPES = NODE_TYPES.filter((type) => !SHARED.includes(type) && !INTERNAL.includes(type));
const NODE = "query ($id: ID!) { node(id: $id) { __typename id } }";
const NODES = "query ($ids: [ID!]!) { nodes(ids: $ids) { __typename id } }";

async function make(type: string, organization: string): Promise<string> {
  const factory = FACTORIES[type];
  if (factory === undefined) throw new Error(`write a factory for the Node type ${type}`);
  return globalIdEncode(type, await factory(organization));
}

test("every type that implements Node has a factory here or belongs to nobody", () => {
  expect(NODE_TYPES.toSorted()).toEqual([...Object.keys(FACTORIES), ...SHARED].sort());
});

test.each(OWNED_TYPES)("a %s of another organization answers a tenant like an unknown one", async (type) => {
  const theirs = await make(type, globex);
  const mine = await make(type, acme);
  const unknown = globalIdEncode(type, randomUUID());
  const tenant = secretOf("tenant");

  const [foreign, missing] = [
    await whole(NODE, { id: theirs }, tenant),
    await whole(NODE, { id: unknown }, tenant),
  ];
  expect(foreign).toEqual(missing);
  expect(foreign).toEqual({ status: 200, data: { node: null }, errors: undefined });
  expect((await whole(NODE, { id: mine }, tenant)).data).toEqual({ node: { __typename: type, id: mine } });

  const together = (other: string) => whole(NODES, { ids: [mine, other, mine] }, tenant);
  expect(await together(theirs)).toEqual(await together(unknown));
  const own = { __typename: type, id: mine };
  expect(await together(theirs)).toEqual({
    status: 200,
    data: { nodes: [own, null, own] },
    errors: undefined,
  });
});

test.each(
  INTERNAL.flatMap((type) => ["tenant", "storefront"].map((role) => ({ type, role: role as TokenRole }))),
)("a $role sees no $type", async ({ type, role }) => {
  const id = await make(type, acme);
  const hidden = await whole(NODE, { id }, secretOf(role));
  expect(hidden).toEqual(await whole(NODE, { id: globalIdEncode(type, randomUUID()) }, secretOf(role)));
  expect(hidden.data).toEqual({ node: null });
});

test.each(NODE_TYPES)("a METER sees no %s, not even of its own organization", async (type) => {
  const id = SHARED.includes(type) ? await siteId() : await make(type, globex);
  expect(await whole(NODE, { id }, secretOf("meter"))).toEqual({
    status: 200,
    data: { node: null },
    errors: undefined,
  });
  expect((await whole(NODES, { ids: [id] }, secretOf("meter"))).data).toEqual({ nodes: [null] });
  expect((await whole(NODE, { id }, secretOf("operator"))).data).toEqual({ node: { __typename: type, id } });
});

async function siteId(): Promise<string> {
  await machine(database().pool, { site: "FRA" });
  const { rows } = await database().pool.query<{ id: string }>("SELECT id FROM site WHERE code = 'FRA'");
  return globalIdEncode("Site", (rows[0] as { id: string }).id);
}

test("the viewer of a METER shows its role and whose it is, and opens nothing else of its organization", async () => {
  const answer = await whole("{ viewer { role organization { id } } }", {}, secretOf("meter"));
  const organization = (answer.data as { viewer: { organization: { id: string } } }).viewer.organization;
  expect(answer.data).toEqual({ viewer: { role: "METER", organization: { id: expect.any(String) } } });
  const opened = await whole(
    "query ($id: ID!) { node(id: $id) { id } }",
    { id: organization.id },
    secretOf("meter"),
  );
  expect(opened.data).toEqual({ node: null });
});

test("edges of a tenant's own machine hide the hold and the binding of the next customer", async () => {
  const { pool } = database();
  const EDGES =
    "query ($id: ID!) { node(id: $id) { ... on Machine { id reservation { id } binding { id } } } }";
  const mine = await machine(pool);
  const over = await hold(pool, mine, { organization: acme });
  await pool.query("SELECT reservation_cancel($1, NULL, NULL)", [over]);
  const id = globalIdEncode("Machine", mine);
  const free = await whole(EDGES, { id }, secretOf("tenant"));
  expect(free.data).toEqual({ node: { id, reservation: null, binding: null } });

  const theirs = await hold(pool, mine, { organization: globex });
  expect(await whole(EDGES, { id }, secretOf("tenant"))).toEqual(free);
  expect((await whole(EDGES, { id }, secretOf("storefront"))).data).toMatchObject({
    node: { reservation: { id: globalIdEncode("Reservation", theirs) } },
  });

  await pool.query("SELECT reservation_convert($1, NULL, 'svc', false)", [theirs]);
  expect(await whole(EDGES, { id }, secretOf("tenant"))).toEqual(free);
  expect((await whole(EDGES, { id }, secretOf("operator"))).data).toMatchObject({
    node: { binding: { id: expect.any(String) } },
  });
});

test("a tenant walks every edge of its own objects", async () => {
  const binding = await make("ServiceBinding", acme);
  const answer = await whole(
    `query ($id: ID!) { node(id: $id) { ... on ServiceBinding {
       organization { id } machine { id binding { id } site { code } }
       reservation { id state organization { id } machine { id } binding { id } } } } }`,
    { id: binding },
    secretOf("tenant"),
  );
  expect(answer.errors).toBeUndefined();
  expect(answer.data).toMatchObject({
    node: {
      organization: { id: globalIdEncode("Organization", acme) },
      machine: { binding: { id: binding }, site: { code: "FRA" } },
      reservation: { state: "CONVERTED", binding: { id: binding } },
    },
  });
});

const RESERVATIONS =
  "query ($organizationId: ID) { reservations(organizationId: $organizationId) { totalCount edges { node { id organization { id } } } } }";

test("lists hold a tenant's own rows only, and another organization's id there is an unknown one", async () => {
  const mine = await make("Reservation", acme);
  const theirs = await make("Reservation", globex);
  const tenant = secretOf("tenant");
  const own = {
    reservations: {
      totalCount: 1,
      edges: [{ node: { id: mine, organization: { id: globalIdEncode("Organization", acme) } } }],
    },
  };
  expect((await whole(RESERVATIONS, {}, tenant)).data).toEqual(own);
  expect(
    (await whole(RESERVATIONS, { organizationId: globalIdEncode("Organization", acme) }, tenant)).data,
  ).toEqual(own);
  const foreign = await whole(
    RESERVATIONS,
    { organizationId: globalIdEncode("Organization", globex) },
    tenant,
  );
  expect(foreign).toEqual(
    await whole(RESERVATIONS, { organizationId: globalIdEncode("Organization", randomUUID()) }, tenant),
  );
  expect(codesOf(foreign)).toEqual(["BAD_USER_INPUT"]);
  expect(JSON.stringify(foreign)).not.toContain(theirs);
  expect((await whole("{ organizations { totalCount edges { node { id } } } }", {}, tenant)).data).toEqual({
    organizations: { totalCount: 1, edges: [{ node: { id: globalIdEncode("Organization", acme) } }] },
  });
});

test("a STOREFRONT sees every organization's reservations, and machines only as far as they stand in one", async () => {
  const { pool } = database();
  const storefront = secretOf("storefront");
  const ids = [await make("Reservation", acme), await make("Reservation", globex)];
  const all = await whole(RESERVATIONS, {}, storefront);
  expect(all.data).toMatchObject({ reservations: { totalCount: 2 } });
  expect((await whole(NODES, { ids }, storefront)).data).toEqual({
    nodes: ids.map((id) => ({ __typename: "Reservation", id })),
  });
  expect(
    (await whole(RESERVATIONS, { organizationId: globalIdEncode("Organization", globex) }, storefront)).data,
  ).toMatchObject({ reservations: { totalCount: 1, edges: [{ node: { id: ids[1] } }] } });

  const unreserved = globalIdEncode("Machine", await machine(pool));
  const unknown = globalIdEncode("Machine", randomUUID());
  expect(await whole(NODE, { id: unreserved }, storefront)).toEqual(
    await whole(NODE, { id: unknown }, storefront),
  );
  expect((await whole(NODE, { id: unreserved }, secretOf("operator"))).data).toMatchObject({
    node: { id: unreserved },
  });
  const reserved = await make("Machine", globex);
  expect((await whole(NODE, { id: reserved }, storefront)).data).toMatchObject({ node: { id: reserved } });
});

test.each(["storefront", "tenant"] as const)(
  "a %s gets the preview's counts, and FORBIDDEN for its candidates",
  async (role) => {
    await machine(database().pool, { cpuCores: 4 });
    await machine(database().pool, { cpuCores: 16 });
    const counts = "considered eligible rejections { reason machines }";
    const expected = {
      considered: 2,
      eligible: 1,
      rejections: [{ reason: "TOO_FEW_CORES", machines: 1 }],
    };
    const ask = (selection: string, as: TokenRole) =>
      whole(`{ allocationPreview(requirements: { minCpuCores: 8 }) { ${selection} } }`, {}, secretOf(as));
    expect((await ask(counts, role)).data).toEqual({ allocationPreview: expected });
    const refused = await ask(`${counts} candidates { totalCount }`, role);
    expect(codesOf(refused)).toEqual(["FORBIDDEN"]);
    expect(JSON.stringify(refused.data ?? {})).not.toContain("totalCount");
    expect((await ask("candidates { totalCount }", "operator")).data).toEqual({
      allocationPreview: { candidates: { totalCount: 2 } },
    });
  },
);

// ---------------------------------------------------------------- ids in mutations and queries

/** Every place of the root fields where an id is taken: `input.reservationId`, `organizationId`. */
const ID_PLACES = ROOT_FIELDS.filter(({ name }) => !["Query.node", "Query.nodes"].includes(name)).flatMap(
  (root) => root.field.args.flatMap((arg) => idPaths(arg.type, [arg.name]).map((path) => ({ root, path }))),
);

function idPaths(type: GraphQLInputType, path: string[]): string[][] {
  if (isNonNullType(type)) return idPaths(type.ofType, path);
  // Of a list of inputs, the first one.
  if (isListType(type))
    return idPaths(type.ofType, isInputObjectType(getNamedType(type)) ? [...path, "0"] : path);
  if (isInputObjectType(type))
    return Object.values(type.getFields()).flatMap((field) => idPaths(field.type, [...path, field.name]));
  return type.name === "ID" ? [path] : [];
}

/** The minimal document with one id set. */
function withId({ root, path }: (typeof ID_PLACES)[number], id: string) {
  const { variables } = minimal(root);
  const [first, ...rest] = path as [string, ...string[]];
  const top = structuredClone(variables) as Record<string, unknown>;
  if (rest.length === 0) top[first] = id;
  else {
    let at = top[first] as Record<string, unknown>;
    for (const step of rest.slice(0, -1)) at = at[step] as Record<string, unknown>;
    at[rest.at(-1) as string] = id;
  }
  return minimal(root, top);
}

const named = ID_PLACES.map((place) => ({ place, name: `${place.root.name} ${place.path.join(".")}` }));
const typeAt = (place: (typeof ID_PLACES)[number]) => idType(place.path.at(-1) as string);

test("the walk finds the ids of mutations and of lists", () => {
  expect(named.map(({ name }) => name)).toEqual(
    expect.arrayContaining(["Query.reservations organizationId", "Mutation.releaseBinding input.bindingId"]),
  );
  expect(named.length).toBeGreaterThanOrEqual(10);
});

test.each(named)(
  "$name: another organization's id answers a tenant like an unknown one",
  async ({ place }) => {
    const type = typeAt(place);
    const theirs = type === "ApiToken" ? await foreignToken() : await make(type, globex);
    const rows = () => everything();
    const before = await rows();
    const first = withId(place, theirs);
    const second = withId(place, globalIdEncode(type, randomUUID()));
    const [foreign, unknown] = [
      await whole(first.query, first.variables, secretOf("tenant")),
      await whole(second.query, second.variables, secretOf("tenant")),
    ];
    expect(foreign).toEqual(unknown);
    expect(JSON.stringify(foreign)).not.toContain(theirs);
    expect(await everything()).toEqual(before);
    // The same id means something to a viewer of every organization.
    if (MATRIX[place.root.name]?.includes("storefront")) {
      const seen = await whole(first.query, first.variables, secretOf("storefront"));
      expect(seen).not.toEqual(foreign);
    }
  },
);

async function foreignToken(): Promise<string> {
  const { rows } = await database().pool.query<{ id: string }>(
    "INSERT INTO api_token (name, role, organization_id, secret_sha256) VALUES ('theirs', 'tenant', $1, $2) RETURNING id",
    [globex, secretHash(unique("theirs"))],
  );
  return globalIdEncode("ApiToken", (rows[0] as { id: string }).id);
}

/** What reservations, bindings, machines, tokens and organizations say now. */
async function everything(): Promise<unknown> {
  const { rows } = await database().pool.query(`
    SELECT 'reservation' AS source, t::text AS line FROM reservation t UNION ALL SELECT 'binding', t::text FROM service_binding t
    UNION ALL SELECT 'machine', t::text FROM machine t UNION ALL SELECT 'token', t::text FROM api_token t
    UNION ALL SELECT 'organization', t::text FROM organization t UNION ALL SELECT 'override', t::text FROM feature_override t
    ORDER BY 1, 2`);
  return rows;
}

/** The answer, and how often the API took a connection for it. */
async function counted(query: string, variables: unknown, secret: string) {
  let taken = 0;
  const count = () => {
    taken += 1;
  };
  api.database.pool.on("acquire", count);
  const answer = await whole(query, variables, secret);
  api.database.pool.off("acquire", count);
  return { answer, taken };
}

test.each(named)("$name: an id of another type is bad input, found without a look-up", async ({ place }) => {
  const role = MATRIX[place.root.name]?.includes("tenant") ? "tenant" : "operator";
  const right = typeAt(place);
  const wrong = right === "Machine" ? "Reservation" : "Machine";
  const { query, variables } = withId(place, globalIdEncode(wrong, randomUUID()));
  const { answer, taken } = await counted(query, variables, secretOf(role));
  expect(answer.errors).toHaveLength(1);
  expect(answer.errors?.[0]).toMatchObject({
    message: expect.stringContaining(`is the id of a ${wrong}, not of a ${right}`),
    extensions: { code: "BAD_USER_INPUT", field: place.path.join(".") },
  });
  expect(taken, "the token is looked up, and nothing else").toBe(1);
});

test("an id of the right type is looked up, so that counting look-ups proves something", async () => {
  const { taken } = await counted(NODE, { id: globalIdEncode("Machine", randomUUID()) }, secretOf("tenant"));
  expect(taken).toBe(2);
});

test("an id of a type that is no Node answers null, found without a look-up", async () => {
  const { answer, taken } = await counted(
    NODE,
    { id: globalIdEncode("ApiToken", randomUUID()) },
    secretOf("operator"),
  );
  expect(answer).toEqual({ status: 200, data: { node: null }, errors: undefined });
  expect(taken).toBe(1);
});

test("global ids are made of a type and a uuid, and every other spelling is refused", () => {
  const id = randomUUID();
  const right = globalIdEncode("Machine", id);
  expect(globalIdDecode(right)).toEqual({ type: "Machine", id });
  for (const wrong of [
    "",
    id,
    `Machine:${id}`,
    `${right.replace(/=+$/, "")}==`,
    `${right} `,
    globalIdEncode("Machine", id.toUpperCase()),
    globalIdEncode("", id),
    globalIdEncode("Machine", `${id}'`),
    globalIdEncode("Machine", "1"),
    "\u0000",
    right.repeat(10),
  ]) {
    if (wrong !== right) expect(globalIdDecode(wrong), wrong).toBeNull();
  }
});
