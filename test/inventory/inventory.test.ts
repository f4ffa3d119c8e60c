import { randomUUID } from "node:crypto";
import fc from "fast-check";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { globalIdDecode, globalIdEncode } from "../../src/graphql/globalId.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { useTestDatabase } from "../support/database.ts";
import {
  AllocationCandidatesDocument,
  type AllocationCandidatesQuery,
  type AllocationCandidatesQueryVariables,
  AllocationCountsDocument,
  CreateMachineDocument,
  CreateSiteDocument,
  FleetDocument,
  MachinesDocument,
  type MachinesQuery,
  type MachinesQueryVariables,
  ReservationsDocument,
  type ReservationsQuery,
  ReserveMachineDocument,
  SetMachineStatusDocument,
  SitesDocument,
} from "../support/operations.ts";
import {
  breaches,
  clear,
  hold,
  type MachineWish,
  machine,
  machines,
  order,
  organizations,
  restock,
  switchSet,
  vanish,
} from "../support/world.ts";

// Sites, machines, what an order would meet, and what the fleet adds up to.

const database = useTestDatabase();
let api: TestApi;
let acme: string;

beforeAll(async () => {
  api = await startApi(database().url, { holdLimit: 1000 });
  acme = (await organizations(database().pool, 1))[0] as string;
});
afterAll(() => api.close());
beforeEach(async () => {
  await database().pool.query("TRUNCATE machine, reservation, service_binding, site CASCADE");
  await switchSet(database().pool, "datacenter", true);
});

const machineGid = (id: string) => globalIdEncode("Machine", id);

async function bind(machineId: string): Promise<string> {
  const reservation = await hold(database().pool, machineId, { organization: acme });
  const { rows } = await database().pool.query<{ outcome: string }>(
    "SELECT reservation_convert($1, NULL, 'svc', false) AS outcome",
    [reservation],
  );
  expect(rows).toEqual([{ outcome: "converted" }]);
  return reservation;
}

// ---------------------------------------------------------------- sites and machines

const createSite = async (code: string, name = "Frankfurt") =>
  (await api.run(CreateSiteDocument, { input: { code, name } })).createSite;
const createMachine = async (wish: Record<string, unknown> = {}) =>
  (
    await api.run(CreateMachineDocument, {
      input: {
        assetTag: "M-1",
        siteCode: "FRA",
        manufacturer: "Dell",
        model: "R450",
        cpuCores: 8,
        memoryGib: 64,
        storageGib: 0,
        ...wish,
      },
    })
  ).createMachine;

test("SiteCreated, then CodeTaken; another spelling is another site", async () => {
  expect(await createSite("FRA")).toMatchObject({ __typename: "SiteCreated", site: { code: "FRA" } });
  expect(await createSite("FRA", "again")).toEqual({
    __typename: "CodeTaken",
    code: "FRA",
    message: expect.stringContaining('"FRA"'),
    nextAction: "RENAME",
    retryAfterMs: null,
  });
  expect(await createSite("fra")).toMatchObject({ __typename: "SiteCreated" });
  const { sites } = await api.run(SitesDocument, {});
  expect(sites.map((site) => site.code).sort()).toEqual(["FRA", "fra"]);
  expect(sites.find((site) => site.code === "FRA")?.name).toBe("Frankfurt");
});

test("one code, six sites at once: one SiteCreated, five CodeTaken", async () => {
  const results = await Promise.all(Array.from({ length: 6 }, () => createSite("AMS")));
  expect(results.filter((result) => result?.__typename === "SiteCreated")).toHaveLength(1);
  expect(results.filter((result) => result?.__typename === "CodeTaken")).toHaveLength(5);
});

test("MachineCreated: as it was entered, PLANNED and not for sale unless somebody says so", async () => {
  await createSite("FRA");
  const labels = ["nvme", "ecc", "nvme"];
  expect(await createMachine({ labels })).toMatchObject({
    __typename: "MachineCreated",
    machine: {
      assetTag: "M-1",
      site: { code: "FRA" },
      manufacturer: "Dell",
      model: "R450",
      cpuCores: 8,
      memoryGib: 64,
      storageGib: 0,
      labels: ["nvme", "ecc"],
      status: "PLANNED",
      availability: "NOT_READY",
      reservation: null,
      binding: null,
    },
  });
  expect(await createMachine({ assetTag: "M-2", status: "READY" })).toMatchObject({
    machine: { status: "READY", availability: "FREE", labels: [] },
  });
});

test("AssetTagTaken: one tag, six machines at once, one MachineCreated", async () => {
  await createSite("FRA");
  const results = await Promise.all(Array.from({ length: 6 }, () => createMachine()));
  expect(results.filter((result) => result?.__typename === "MachineCreated")).toHaveLength(1);
  expect(results.find((result) => result?.__typename === "AssetTagTaken")).toEqual({
    __typename: "AssetTagTaken",
    assetTag: "M-1",
    message: expect.stringContaining("M-1"),
    nextAction: "RENAME",
    retryAfterMs: null,
  });
  expect((await database().pool.query("SELECT FROM machine")).rowCount).toBe(1);
});

test("SiteNotFound: the code is compared exactly, and nothing is written", async () => {
  await createSite("FRA");
  expect(await createMachine({ siteCode: "fra" })).toEqual({
    __typename: "SiteNotFound",
    siteCode: "fra",
    message: expect.stringContaining('"fra"'),
    nextAction: "FIX_REQUEST",
    retryAfterMs: null,
  });
  expect((await database().pool.query("SELECT FROM machine")).rowCount).toBe(0);
});

// ---------------------------------------------------------------- status

const STATUSES = ["PLANNED", "STAGED", "READY", "MAINTENANCE", "CLEANING", "FAILED", "RETIRED"] as const;
const setStatus = async (id: string, status: (typeof STATUSES)[number]) =>
  (await api.run(SetMachineStatusDocument, { input: { machineId: machineGid(id), status } }))
    .setMachineStatus;

test("MachineStatusSet: a free machine goes from every status to every other, and only READY is for sale", async () => {
  const id = await machine(database().pool);
  for (const from of STATUSES) {
    for (const to of STATUSES) {
      await setStatus(id, from);
      expect(await setStatus(id, to)).toEqual({
        __typename: "MachineStatusSet",
        machine: { id: machineGid(id), status: to, availability: to === "READY" ? "FREE" : "NOT_READY" },
      });
    }
  }
});

test("MachineInUse: a held machine keeps its status, and says until when", async () => {
  const id = await machine(database().pool);
  await hold(database().pool, id, { endsIn: 600 });
  const refused = await setStatus(id, "MAINTENANCE");
  expect(refused).toMatchObject({
    __typename: "MachineInUse",
    nextAction: "WAIT",
    machine: { id: machineGid(id), status: "READY", availability: "HELD" },
  });
  if (refused?.__typename !== "MachineInUse") throw new Error("expected MachineInUse");
  // Never more than the hold has left, and never so little that a repeat comes too early by much.
  expect(refused.retryAfterMs).toBeGreaterThan(0);
  expect(refused.retryAfterMs).toBeLessThanOrEqual(600_000);
  const { rows } = await database().pool.query<{ left: number }>(
    "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 * 1000 AS left FROM reservation",
  );
  expect(refused.retryAfterMs).toBeGreaterThanOrEqual(rows[0]?.left ?? Number.POSITIVE_INFINITY);
  expect(await setStatus(id, "READY"), "setting what it is changes nothing").toMatchObject({
    __typename: "MachineStatusSet",
  });
});

test("MachineInUse: a bound machine keeps its status, and no waiting helps", async () => {
  const id = await machine(database().pool);
  await bind(id);
  expect(await setStatus(id, "MAINTENANCE")).toEqual({
    __typename: "MachineInUse",
    nextAction: "FIX_REQUEST",
    retryAfterMs: null,
    message: expect.stringContaining("Release the binding first"),
    machine: { id: machineGid(id), status: "READY", availability: "BOUND" },
  });
});

test("a lapsed hold is in nobody's way: the status is set and the hold is over for good", async () => {
  const { pool } = database();
  const id = await machine(pool);
  await hold(pool, id, { endsIn: -0.001 });
  expect(await setStatus(id, "MAINTENANCE")).toMatchObject({
    __typename: "MachineStatusSet",
    machine: { status: "MAINTENANCE", availability: "NOT_READY" },
  });
  const { rows } = await pool.query(
    "SELECT state, settled_at = expires_at AS at_its_deadline FROM reservation",
  );
  expect(rows).toEqual([{ state: "expired", at_its_deadline: true }]);
  expect(await breaches(pool)).toEqual([]);
});

// ---------------------------------------------------------------- the list of machines

const list = async (variables: MachinesQueryVariables = {}) =>
  (await api.run(MachinesDocument, variables)).machines;
const tags = (page: MachinesQuery["machines"]) => page.edges.map((edge) => edge.node.assetTag);

test("filters: each restricts, all together do, and what matches nothing is an empty list", async () => {
  const { pool } = database();
  await machine(pool, { assetTag: "A", site: "FRA", manufacturer: "Dell" });
  await machine(pool, { assetTag: "B", site: "AMS", manufacturer: "Dell", status: "failed" });
  const held = await machine(pool, { assetTag: "C", site: "AMS", manufacturer: "HPE" });
  const bound = await machine(pool, { assetTag: "D", site: "FRA", manufacturer: "HPE" });
  const lapsed = await machine(pool, { assetTag: "E", site: "FRA", manufacturer: "HPE" });
  await hold(pool, held);
  await bind(bound);
  await hold(pool, lapsed, { endsIn: -1 });
  const cases: [NonNullable<MachinesQueryVariables["filter"]>, string[]][] = [
    [{}, ["A", "B", "C", "D", "E"]],
    [{ siteCode: "FRA" }, ["A", "D", "E"]],
    [{ siteCode: "fra" }, []],
    [{ manufacturer: "HPE" }, ["C", "D", "E"]],
    [{ status: "READY" }, ["A", "C", "D", "E"]],
    [{ status: "FAILED" }, ["B"]],
    [{ availability: "FREE" }, ["A", "E"]],
    [{ availability: "HELD" }, ["C"]],
    [{ availability: "BOUND" }, ["D"]],
    [{ availability: "NOT_READY" }, ["B"]],
    [{ siteCode: "FRA", manufacturer: "HPE", availability: "FREE" }, ["E"]],
    [{ siteCode: "NOWHERE" }, []],
    [{ siteCode: "FRA", search: "b" }, []],
  ];
  for (const [filter, expected] of cases) {
    const page = await list({ filter });
    expect([tags(page), page.totalCount], JSON.stringify(filter)).toEqual([expected, expected.length]);
  }
  const { machines: all } = await api.run(MachinesDocument, { filter: null });
  expect(all.totalCount).toBe(5);
});

test("search finds parts of every text, whatever the case, and takes %, _ and \\ for what they are", async () => {
  const { pool } = database();
  await machine(pool, { assetTag: "pct-100%", model: "plain", manufacturer: "one", labels: [] });
  await machine(pool, { assetTag: "us-a_b", model: "plain", manufacturer: "two", labels: [] });
  await machine(pool, { assetTag: "us-aXb", model: "plain", manufacturer: "two", labels: ["Label-Q"] });
  await machine(pool, { assetTag: "bs-a\\b", model: "PowerEdge", manufacturer: "three", labels: [] });
  await pool.query("UPDATE machine SET location = 'Rack 7' WHERE asset_tag = 'us-aXb'");
  for (const [search, expected] of [
    ["%", ["pct-100%"]],
    ["00%", ["pct-100%"]],
    ["_", ["us-a_b"]],
    ["a_b", ["us-a_b"]],
    ["\\", ["bs-a\\b"]],
    ["a\\b", ["bs-a\\b"]],
    ["\\%", []],
    ["%_", []],
    ["US-A", ["us-aXb", "us-a_b"]],
    ["poweredge", ["bs-a\\b"]],
    ["label-q", ["us-aXb"]],
    ["rack 7", ["us-aXb"]],
    ["tw", ["us-aXb", "us-a_b"]],
    ["'; DROP TABLE machine; --", []],
  ] as [string, string[]][]) {
    const page = await list({ filter: { search } });
    expect(tags(page).sort(), search).toEqual([...expected].sort());
    expect(page.totalCount).toBe(expected.length);
  }
});

/** Walks a list from one end to the other, a page at a time. */
async function walk(
  size: number,
  direction: "forward" | "backward",
  filter: MachinesQueryVariables["filter"] = null,
) {
  const seen: string[] = [];
  let cursor: string | null = null;
  for (let step = 0; ; step++) {
    if (step > 100) throw new Error("the walk does not end");
    const page: MachinesQuery["machines"] = await list(
      direction === "forward"
        ? { filter, first: size, after: cursor }
        : { filter, last: size, before: cursor },
    );
    if (direction === "forward") seen.push(...tags(page));
    else seen.unshift(...tags(page));
    const info = page.pageInfo;
    expect(direction === "forward" ? info.hasPreviousPage : info.hasNextPage).toBe(cursor !== null);
    cursor = (direction === "forward" ? info.endCursor : info.startCursor) ?? null;
    if (!(direction === "forward" ? info.hasNextPage : info.hasPreviousPage)) return seen;
  }
}

test("both directions walk the same list, with every page size, and count all of it", async () => {
  const { pool } = database();
  for (let index = 0; index < 13; index++)
    await machine(pool, { assetTag: `T-${index}`, manufacturer: index % 2 === 0 ? "even" : "odd" });
  const { rows } = await pool.query<{ tag: string }>(
    "SELECT asset_tag AS tag FROM machine ORDER BY asset_tag",
  );
  const expected = rows.map((row) => row.tag);
  for (const size of [1, 2, 5, 12, 13, 14, 1000]) {
    expect(await walk(size, "forward"), `forward by ${size}`).toEqual(expected);
    expect(await walk(size, "backward"), `backward by ${size}`).toEqual(expected);
  }
  expect(await walk(3, "backward", { manufacturer: "odd" })).toEqual(
    await walk(2, "forward", { manufacturer: "odd" }),
  );
  const first = await list({ first: 5 });
  expect([first.totalCount, first.pageInfo.hasNextPage, first.pageInfo.hasPreviousPage]).toEqual([
    13,
    true,
    false,
  ]);
  const none = await list({ first: 0 });
  expect([none.edges, none.totalCount]).toEqual([[], 13]);
  const between = await list({
    first: 10,
    after: first.edges[0]?.cursor ?? null,
    before: first.edges[4]?.cursor ?? null,
  });
  expect(tags(between)).toEqual(expected.slice(1, 4));
});

test("a size above the maximum is cut to it", async () => {
  await database().pool.query("INSERT INTO site (code, name) VALUES ('BIG', 'BIG')");
  await database().pool.query(`
    INSERT INTO machine (asset_tag, site_id, manufacturer, model, cpu_cores, memory_gib, storage_gib)
    SELECT 'L-' || lpad(i::text, 5, '0'), s.id, 'm', 'm', 1, 1, 1 FROM site s, generate_series(1, 1005) i WHERE s.code = 'BIG'`);
  const page = await list({ first: 2_000_000 });
  expect([page.edges.length, page.totalCount, page.pageInfo.hasNextPage]).toEqual([1000, 1005, true]);
  const rest = await list({ first: 1000, after: page.pageInfo.endCursor ?? null });
  expect([rest.edges.length, rest.pageInfo.hasNextPage]).toEqual([5, false]);
  expect((await list()).edges).toHaveLength(50);
});

test("paging goes on behind a row that was deleted, renamed or sold in the meantime", async () => {
  const { pool } = database();
  const ids: string[] = [];
  for (let index = 10; index < 35; index++) ids.push(await machine(pool, { assetTag: `P-${index}` }));
  const next = Array.from({ length: 10 }, (_, index) => `P-${index + 20}`);
  const first = await list({ first: 10 });
  const after = first.pageInfo.endCursor ?? null;
  const page = async () => tags(await list({ first: 10, after }));
  expect(await page()).toEqual(next);
  await hold(pool, ids[9] as string);
  expect(await page(), "its state changed").toEqual(next);
  await clear(pool);
  for (let index = 10; index < 35; index++) if (index !== 19) await machine(pool, { assetTag: `P-${index}` });
  expect(await page(), "it was deleted").toEqual(next);
  await pool.query("UPDATE machine SET asset_tag = 'A-first' WHERE asset_tag = 'P-18'");
  expect(await page(), "its neighbour was renamed").toEqual(next);
  expect(tags(await list({ last: 3, before: after }))).toEqual(["P-15", "P-16", "P-17"]);
});

test("asset tags of any length and script can be paged over", async () => {
  const { pool } = database();
  const wanted = ["😀".repeat(100), "東京".repeat(50), 'a "quoted", tag', "a\ttab", "z".repeat(100)];
  for (const assetTag of wanted) await machine(pool, { assetTag });
  const seen = await walk(1, "forward");
  expect(seen.toSorted()).toEqual(wanted.toSorted());
});

// ---------------------------------------------------------------- the list of reservations

/** 30 reservations of one organization, as if they had been made at these instants. */
async function thirty(at: string): Promise<string[]> {
  const { pool } = database();
  await machines(pool, 30);
  await pool.query(
    `INSERT INTO reservation (organization_id, machine_id, order_reference, idempotency_key, requirements, held_at, hold_seconds, expires_at, choice)
     SELECT $1, m.id, 'o', 'paging-' || m.id, '{}', t.at, 900, t.at + interval '900 seconds',
            jsonb_build_object('rank', 1, 'skipped', 0, 'lostRaces', 0, 'assetTag', m.asset_tag, 'siteCode', 'FRA',
              'manufacturer', 'm', 'model', 'm', 'cpuCores', 1, 'memoryGib', 1, 'storageGib', 1, 'labels', '{}'::text[], 'explanation', 'e')
     FROM (SELECT *, row_number() OVER (ORDER BY id) AS n FROM machine) m, LATERAL (SELECT ${at} AS at) t`,
    [acme],
  );
  const { rows } = await pool.query<{ id: string }>(
    "SELECT id FROM reservation ORDER BY held_at DESC, id DESC",
  );
  return rows.map((row) => globalIdEncode("Reservation", row.id));
}

async function walkReservations(size: number, each?: (cursor: string) => Promise<void>) {
  const seen: string[] = [];
  let after: string | null = null;
  for (let step = 0; ; step++) {
    if (step > 100) throw new Error("the walk does not end");
    const answer: ReservationsQuery = await api.run(ReservationsDocument, { first: size, after });
    const { edges, pageInfo } = answer.reservations;
    seen.push(...edges.map((edge) => edge.node.id));
    after = pageInfo.endCursor ?? null;
    if (!pageInfo.hasNextPage || after === null) return seen;
    await each?.(edges.at(-1)?.node.id as string);
  }
}

test.each([
  [
    "in one microsecond",
    "date_trunc('second', now()) - interval '1 minute' + interval '123456 microseconds'",
  ],
  [
    "in one millisecond, a microsecond apart",
    "date_trunc('second', now()) - interval '1 minute' + interval '123000 microseconds' + m.n * interval '1 microsecond'",
  ],
  [
    "in pairs, ten milliseconds apart",
    "date_trunc('second', now()) - interval '1 minute' + (m.n / 2) * interval '10 milliseconds'",
  ],
])("30 reservations made %s page newest first, none skipped and none twice", async (_name, at) => {
  const expected = await thirty(at);
  for (const size of [1, 7, 10, 29, 30, 31]) expect(await walkReservations(size)).toEqual(expected);
  const backward = await api.send<{
    reservations: { edges: { node: { id: string } }[]; pageInfo: { hasPreviousPage: boolean } };
  }>("{ reservations(last: 7) { edges { node { id } } pageInfo { hasPreviousPage } } }");
  expect(backward.data?.reservations.edges.map((edge) => edge.node.id)).toEqual(expected.slice(-7));
  expect(backward.data?.reservations.pageInfo.hasPreviousPage).toBe(true);
});

test("paging over reservations goes on when the cursor's row is deleted or changes its state", async () => {
  const { pool } = database();
  const expected = await thirty("date_trunc('second', now()) - interval '1 minute'");
  let turn = 0;
  const seen = await walkReservations(5, async (id) => {
    const uuid = globalIdDecode(id)?.id;
    if (turn++ % 2 === 0) await vanish(pool, uuid ?? "");
    else await pool.query("SELECT reservation_cancel($1, NULL, NULL)", [uuid]);
  });
  expect(seen).toEqual(expected);
});

// ---------------------------------------------------------------- the preview

type Requirements = AllocationCandidatesQueryVariables["requirements"];
const counts = async (requirements: Requirements = {}, of = api) =>
  (await of.run(AllocationCountsDocument, { requirements })).allocationPreview;
const candidates = async (variables: AllocationCandidatesQueryVariables, of = api) =>
  (await of.run(AllocationCandidatesDocument, variables)).allocationPreview;
type Candidate = NonNullable<
  AllocationCandidatesQuery["allocationPreview"]["candidates"]
>["edges"][number]["node"];

const REASONS = [
  "WRONG_SITE",
  "WRONG_MANUFACTURER",
  "WRONG_MODEL",
  "TOO_FEW_CORES",
  "TOO_LITTLE_MEMORY",
  "TOO_LITTLE_STORAGE",
  "MISSING_LABEL",
  "NOT_READY",
  "HELD",
  "BOUND",
] as const;

/** One machine for every reason, one for all hardware reasons at once, and two that fit. */
async function everyReason(): Promise<Requirements> {
  const { pool } = database();
  const fit: MachineWish = {
    site: "FRA",
    cpuCores: 8,
    memoryGib: 64,
    storageGib: 1000,
    labels: ["nvme", "ecc"],
  };
  await machine(pool, { ...fit, assetTag: "FITS-BIG", cpuCores: 16 });
  await machine(pool, { ...fit, assetTag: "FITS" });
  await machine(pool, { ...fit, assetTag: "WRONG_SITE", site: "AMS" });
  await machine(pool, { ...fit, assetTag: "WRONG_MANUFACTURER", manufacturer: "HPE" });
  await machine(pool, { ...fit, assetTag: "WRONG_MODEL", model: "R650" });
  await machine(pool, { ...fit, assetTag: "TOO_FEW_CORES", cpuCores: 7 });
  await machine(pool, { ...fit, assetTag: "TOO_LITTLE_MEMORY", memoryGib: 63 });
  await machine(pool, { ...fit, assetTag: "TOO_LITTLE_STORAGE", storageGib: 999 });
  await machine(pool, { ...fit, assetTag: "MISSING_LABEL", labels: ["nvme"] });
  await machine(pool, { ...fit, assetTag: "NOT_READY", status: "maintenance" });
  await hold(pool, await machine(pool, { ...fit, assetTag: "HELD" }));
  await bind(await machine(pool, { ...fit, assetTag: "BOUND" }));
  await hold(pool, await machine(pool, { ...fit, assetTag: "LAPSED", cpuCores: 32 }), { endsIn: -1 });
  await machine(pool, {
    assetTag: "EVERYTHING",
    site: "AMS",
    manufacturer: "HPE",
    model: "R650",
    cpuCores: 1,
    memoryGib: 1,
    storageGib: 0,
    labels: [],
    status: "failed",
  });
  await hold(pool, await machine(pool, { ...fit, assetTag: "HELD-AND-SMALL", cpuCores: 2 }));
  return {
    siteCode: "FRA",
    manufacturer: "Dell",
    model: "R450",
    minCpuCores: 8,
    minMemoryGib: 64,
    minStorageGib: 1000,
    labels: ["ecc", "nvme"],
  };
}

async function allCandidates(variables: AllocationCandidatesQueryVariables): Promise<Candidate[]> {
  const seen: Candidate[] = [];
  let after: string | null = null;
  for (let step = 0; ; step++) {
    if (step > 100) throw new Error("the walk does not end");
    const preview: AllocationCandidatesQuery["allocationPreview"] = await candidates({ ...variables, after });
    const { edges, pageInfo } = preview.candidates;
    seen.push(...edges.map((edge) => edge.node));
    after = pageInfo.endCursor ?? null;
    if (!pageInfo.hasNextPage || after === null) return seen;
  }
}

test("every machine is listed with every reason against it, and the values that were compared", async () => {
  const requirements = await everyReason();
  const { candidates: page } = await candidates({ requirements });
  const of = (tag: string) => page.edges.find((edge) => edge.node.machine.assetTag === tag)?.node;
  expect(page.totalCount).toBe(15);
  for (const reason of REASONS) {
    expect(of(reason), reason).toMatchObject({
      verdict: "REJECTED",
      rank: null,
      rejections: [{ reason, kind: reason === "HELD" || reason === "BOUND" ? "EXHAUSTED" : "FILTERED" }],
    });
  }
  expect(of("EVERYTHING")?.rejections.map((rejection) => rejection.reason)).toEqual(
    REASONS.filter((reason) => reason !== "HELD" && reason !== "BOUND"),
  );
  expect(of("HELD-AND-SMALL")?.rejections.map((rejection) => rejection.reason)).toEqual([
    "TOO_FEW_CORES",
    "HELD",
  ]);
  expect(of("TOO_FEW_CORES")?.rejections).toMatchObject([{ wanted: "8", actual: "7" }]);
  expect(of("TOO_LITTLE_MEMORY")?.rejections).toMatchObject([{ wanted: "64 GiB", actual: "63 GiB" }]);
  expect(of("WRONG_SITE")?.rejections).toMatchObject([{ wanted: "FRA", actual: "AMS" }]);
  expect(of("NOT_READY")?.rejections).toMatchObject([{ actual: "MAINTENANCE" }]);
  expect(of("HELD")?.rejections).toMatchObject([
    { wanted: null, actual: expect.stringContaining("held until") },
  ]);
  expect(
    page.edges
      .filter((edge) => edge.node.verdict === "ELIGIBLE")
      .map(({ node }) => [node.machine.assetTag, node.rank, node.rejections]),
  ).toEqual([
    ["FITS", 1, []],
    ["FITS-BIG", 2, []],
    ["LAPSED", 3, []],
  ]);
});

test("the counts are those of the list, reason by reason and verdict by verdict", async () => {
  const requirements = await everyReason();
  for (const asked of [requirements, {}, { minCpuCores: 100 }, { siteCode: "NOWHERE", labels: [] }]) {
    const preview = await counts(asked);
    const all = await allCandidates({ requirements: asked, first: 4 });
    expect(preview.considered).toBe(all.length);
    expect(preview.eligible).toBe(all.filter((candidate) => candidate.verdict === "ELIGIBLE").length);
    for (const reason of REASONS) {
      const filtered = await candidates({ requirements: asked, reason });
      const told = preview.rejections.find((rejection) => rejection.reason === reason)?.machines ?? 0;
      const counted = all.filter((candidate) =>
        candidate.rejections.some((rejection) => rejection.reason === reason),
      ).length;
      expect([told, filtered.candidates.totalCount, filtered.candidates.edges.length], reason).toEqual([
        counted,
        counted,
        counted,
      ]);
    }
    for (const verdict of ["ELIGIBLE", "REJECTED"] as const) {
      const filtered = await allCandidates({ requirements: asked, verdict, first: 2 });
      expect(filtered).toEqual(all.filter((candidate) => candidate.verdict === verdict));
    }
    const both = await candidates({ requirements: asked, verdict: "ELIGIBLE", reason: "HELD" });
    expect(both.candidates.totalCount).toBe(0);
  }
});

test("paging over candidates is complete and without repeats, with every page size", async () => {
  const requirements = await everyReason();
  const whole = await candidates({ requirements });
  const expected = whole.candidates.edges.map((edge) => edge.node);
  for (const size of [1, 2, 3, 4, 14, 15, 16]) {
    const seen = await allCandidates({ requirements, first: size });
    expect(seen, `by ${size}`).toEqual(expected);
    expect(new Set(seen.map((candidate) => candidate.machine.id)).size).toBe(15);
  }
  const back = await api.send<{
    allocationPreview: { candidates: { edges: { node: { machine: { assetTag: string } } }[] } };
  }>(
    "query ($r: MachineRequirements!) { allocationPreview(requirements: $r) { candidates(last: 4) { edges { node { machine { assetTag } } } } } }",
    { r: requirements },
  );
  expect(back.data?.allocationPreview.candidates.edges.map((edge) => edge.node.machine.assetTag)).toEqual(
    expected.slice(-4).map((candidate) => candidate.machine.assetTag),
  );
});

test("the preview waits for nobody, locks nothing and writes nothing", async () => {
  const { pool } = database();
  const requirements = await everyReason();
  const content = async () =>
    (
      await pool.query(
        "SELECT 'm' AS t, m::text AS line FROM machine m UNION ALL SELECT 'r', r::text FROM reservation r UNION ALL SELECT 'b', b::text FROM service_binding b ORDER BY 1, 2",
      )
    ).rows;
  const before = await content();
  // One session, which may only read: whoever writes there, or locks a row, is refused by the database.
  const reader = await startApi(database().url, { poolSize: 1 }, true);
  await reader.database.pool.query("SET default_transaction_read_only = on");
  const holder = await database().connect();
  try {
    await holder.query("BEGIN");
    // Every row is locked, so that a preview that locked any of them would wait until this test ends.
    const { rowCount } = await holder.query("SELECT FROM machine FOR UPDATE");
    await holder.query("SELECT FROM reservation FOR UPDATE");
    expect(rowCount).toBe(15);
    expect(await counts(requirements, reader)).toMatchObject({ considered: 15, eligible: 3 });
    expect((await candidates({ requirements }, reader)).candidates.totalCount).toBe(15);
    const refused = await reader.send(
      "mutation ($input: ReserveMachineInput!) { reserveMachine(input: $input) { __typename } }",
      order(acme),
    );
    expect(refused.errors?.[0]?.extensions?.["code"], "it sees an order").toBe("INTERNAL_SERVER_ERROR");
    const { rows: waiting } = await pool.query(
      "SELECT FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE a.datname = current_database() AND NOT l.granted",
    );
    expect(waiting).toEqual([]);
  } finally {
    await reader.close();
    await holder.query("ROLLBACK");
    await holder.end();
  }
  const { rows: left } = await pool.query(
    `SELECT l.mode FROM pg_locks l JOIN pg_stat_activity a USING (pid)
     WHERE a.datname = current_database() AND a.application_name = 'holdfast'`,
  );
  expect(left).toEqual([]);
  expect(await content()).toEqual(before);
});

// ---------------------------------------------------------------- preview and reservation agree

const SMALL = { site: ["FRA", "AMS"], maker: ["Dell", "HPE"], label: ["nvme", "ecc", "gpu"] };
const someMachine = fc.record({
  site: fc.constantFrom(...SMALL.site),
  manufacturer: fc.constantFrom(...SMALL.maker),
  model: fc.constantFrom("R450", "R650"),
  cpuCores: fc.integer({ min: 1, max: 4 }),
  memoryGib: fc.integer({ min: 1, max: 3 }),
  storageGib: fc.integer({ min: 0, max: 2 }),
  labels: fc.subarray(SMALL.label),
  status: fc.constantFrom("ready", "ready", "ready", "maintenance"),
  use: fc.constantFrom("free", "free", "free", "held", "lapsed", "bound"),
});
const sometimes = <T>(arbitrary: fc.Arbitrary<T>) => fc.option(arbitrary, { nil: null, freq: 2 });
const someRequirements = fc.record({
  siteCode: sometimes(fc.constantFrom(...SMALL.site, "NOWHERE")),
  manufacturer: sometimes(fc.constantFrom(...SMALL.maker)),
  model: sometimes(fc.constantFrom("R450", "R650")),
  minCpuCores: sometimes(fc.integer({ min: 0, max: 5 })),
  minMemoryGib: sometimes(fc.integer({ min: 0, max: 4 })),
  minStorageGib: sometimes(fc.integer({ min: 0, max: 3 })),
  labels: sometimes(fc.subarray(SMALL.label)),
});

/** Puts an inventory in place of the present one. */
async function stock(wishes: readonly (MachineWish & { use: string })[]): Promise<void> {
  const { pool } = database();
  await clear(pool);
  await pool.query(
    "INSERT INTO site (code, name) VALUES ('FRA', 'FRA'), ('AMS', 'AMS') ON CONFLICT DO NOTHING",
  );
  for (const { use, ...wish } of wishes) {
    const id = await machine(pool, use === "free" ? wish : { ...wish, status: "ready" });
    if (use === "held") await hold(pool, id, { organization: acme });
    if (use === "lapsed") await hold(pool, id, { organization: acme, endsIn: -1 });
    if (use === "bound") await bind(id);
  }
}

test("for any inventory and order, a machine is reserved exactly when one is eligible, and it fits like the first", async () => {
  const outcomes = new Set<string>();
  await fc.assert(
    fc.asyncProperty(
      fc.array(someMachine, { maxLength: 8 }),
      someRequirements,
      async (inventory, requirements) => {
        await stock(inventory);
        const preview = await candidates({ requirements, first: 100 });
        const plain = await counts(requirements);
        expect([plain.considered, plain.eligible]).toEqual([preview.considered, preview.eligible]);
        const { reserveMachine } = await api.run(ReserveMachineDocument, order(acme, requirements));
        outcomes.add(reserveMachine?.__typename ?? "none");
        if (preview.eligible === 0) {
          expect(reserveMachine).toMatchObject({
            __typename: "NothingAvailable",
            considered: preview.considered,
            rejections: plain.rejections,
          });
          return;
        }
        expect(reserveMachine?.__typename).toBe("MachineReserved");
        if (reserveMachine?.__typename !== "MachineReserved") return;
        const { choice, machine: chosen } = reserveMachine.reservation;
        const first = preview.candidates.edges[0]?.node;
        expect(first?.rank).toBe(1);
        const { rows } = await database().pool.query<{ id: string; fit: string }>(
          "SELECT id, (cpu_cores, memory_gib, storage_gib)::text AS fit FROM machine WHERE id = ANY ($1)",
          [[globalIdDecode(chosen.id)?.id, globalIdDecode(first?.machine.id ?? "")?.id]],
        );
        expect(new Set(rows.map((row) => row.fit)).size).toBe(1);
        expect(rows.find((row) => row.id === globalIdDecode(chosen.id)?.id)?.fit).toBe(
          `(${choice.cpuCores},${choice.memoryGib},${choice.storageGib})`,
        );
        const eligible = preview.candidates.edges.filter((edge) => edge.node.verdict === "ELIGIBLE");
        expect(eligible.map((edge) => edge.node.machine.id)).toContain(chosen.id);
      },
    ),
    { numRuns: 50, seed: 20261201 },
  );
  expect([...outcomes].sort(), "both outcomes were met").toEqual(["MachineReserved", "NothingAvailable"]);
});

test("a machine whose hold has lapsed comes after the free ones, in the preview and in the reservation", async () => {
  const { pool } = database();
  const lapsed = await machine(pool, { assetTag: "LAPSED", cpuCores: 4 });
  await hold(pool, lapsed, { endsIn: -1 });
  await machine(pool, { assetTag: "FREE", cpuCores: 8 });
  const ranks = async () =>
    (await candidates({ requirements: {} })).candidates.edges.map(({ node }) => [
      node.machine.assetTag,
      node.rank,
    ]);
  const take = async () => (await api.run(ReserveMachineDocument, order(acme))).reserveMachine;
  expect(await ranks()).toEqual([
    ["FREE", 1],
    ["LAPSED", 2],
  ]);
  expect(await take()).toMatchObject({ reservation: { choice: { rank: 1, assetTag: "FREE" } } });
  expect(await ranks()).toEqual([
    ["LAPSED", 1],
    ["FREE", null],
  ]);
  expect(await take()).toMatchObject({ reservation: { choice: { rank: 1, assetTag: "LAPSED" } } });
});

test("for any inventory and order, the reasons are those that a plain reading of the order gives", async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.array(someMachine, { minLength: 1, maxLength: 8 }),
      someRequirements,
      async (inventory, r) => {
        await stock(inventory.map((wish, index) => ({ ...wish, assetTag: `X-${index}` })));
        const listed = await allCandidates({ requirements: r, first: 3 });
        expect(listed).toHaveLength(inventory.length);
        inventory.forEach((m, index) => {
          const status = m.use === "free" ? m.status : "ready";
          const expected = [
            r.siteCode !== null && m.site !== r.siteCode ? "WRONG_SITE" : "",
            r.manufacturer !== null && m.manufacturer !== r.manufacturer ? "WRONG_MANUFACTURER" : "",
            r.model !== null && m.model !== r.model ? "WRONG_MODEL" : "",
            m.cpuCores < (r.minCpuCores ?? 0) ? "TOO_FEW_CORES" : "",
            m.memoryGib < (r.minMemoryGib ?? 0) ? "TOO_LITTLE_MEMORY" : "",
            m.storageGib < (r.minStorageGib ?? 0) ? "TOO_LITTLE_STORAGE" : "",
            (r.labels ?? []).some((label) => !m.labels.includes(label)) ? "MISSING_LABEL" : "",
            status === "ready" ? "" : "NOT_READY",
            m.use === "held" ? "HELD" : m.use === "bound" ? "BOUND" : "",
          ].filter((reason) => reason !== "");
          const found = listed.find((candidate) => candidate.machine.assetTag === `X-${index}`);
          expect(found?.rejections.map((rejection) => rejection.reason)).toEqual(expected);
          expect(found?.verdict).toBe(expected.length === 0 ? "ELIGIBLE" : "REJECTED");
        });
      },
    ),
    { numRuns: 40, seed: 20261202 },
  );
});

// ---------------------------------------------------------------- the fleet

test("for any inventory, the fleet's figures are a plain count, with lapsed holds counted free", async () => {
  await database().pool.query("INSERT INTO site (code, name) VALUES ('EMPTY', 'EMPTY')");
  await fc.assert(
    fc.asyncProperty(fc.array(someMachine, { maxLength: 12 }), async (inventory) => {
      await stock(inventory);
      const figures = (code: string) => {
        const here = inventory.filter((wish) => wish.site === code);
        const ready = (wish: (typeof inventory)[number]) => wish.use !== "free" || wish.status === "ready";
        return {
          siteCode: code,
          machines: here.length,
          free: here.filter((wish) => ready(wish) && (wish.use === "free" || wish.use === "lapsed")).length,
          held: here.filter((wish) => wish.use === "held").length,
          bound: here.filter((wish) => wish.use === "bound").length,
          notReady: here.filter((wish) => !ready(wish)).length,
        };
      };
      const { fleet } = await api.run(FleetDocument, {});
      expect(fleet).toEqual([figures("AMS"), figures("EMPTY"), figures("FRA")]);
      for (const row of fleet) expect(row.free + row.held + row.bound + row.notReady).toBe(row.machines);
    }),
    { numRuns: 25, seed: 20261203 },
  );
  expect((await api.run(FleetDocument, { siteCode: "EMPTY" })).fleet).toHaveLength(1);
  expect((await api.run(FleetDocument, { siteCode: "NOWHERE" })).fleet).toEqual([]);
});

test("an order that no site matches takes no machine, and one that some match takes theirs", async () => {
  const { pool } = database();
  await machines(pool, 2, { site: "FRA" });
  await machine(pool, { site: "AMS", status: "failed" });
  const reserve = async (requirements: object) =>
    (await api.run(ReserveMachineDocument, order(acme, requirements, randomUUID()))).reserveMachine;
  for (const siteCode of ["AMS", "NOWHERE", "fra", "FRA "]) {
    expect(await reserve({ siteCode }), siteCode).toMatchObject({
      __typename: "NothingAvailable",
      considered: 3,
      nextAction: "BUY_MORE",
    });
  }
  expect((await pool.query("SELECT FROM reservation")).rowCount).toBe(0);
  expect(await reserve({ siteCode: "FRA" })).toMatchObject({ __typename: "MachineReserved" });
  await restock(pool);
  expect(await reserve({ siteCode: null, labels: [] })).toMatchObject({ __typename: "MachineReserved" });
});
