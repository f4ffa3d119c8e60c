import { randomUUID } from "node:crypto";
import fc from "fast-check";
import type pg from "pg";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { machinesImport } from "../../src/inventory/importMachines.ts";
import { logOpen } from "../../src/logging.ts";
import { sellableIn } from "../../src/racks/capacity.ts";
import { sweep } from "../../src/workers/sweeper.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { waitUntilBlocked } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import {
  CancelRackReservationDocument,
  CreateRackDocument,
  MovePlacementsDocument,
  PromoteRackReservationDocument,
  RackByIdDocument,
  RackSpaceDocument,
  RemovePlacementDocument,
  ReserveRackUnitsDocument,
  type ReserveRackUnitsInput,
  SetMachineGeometryDocument,
  UpdateRackDocument,
} from "../support/operations.ts";
import { uuidOf } from "../support/publishing.ts";
import { clear, machine, order, organizations, rack, switchSet, unique } from "../support/world.ts";

const database = useTestDatabase();
/** Where arbiters are taken away. */
const bare = useTestDatabase();
const apis: TestApi[] = [];

beforeAll(async () => {
  for (let index = 0; index < 2; index++) apis.push(await startApi(database().url, { poolSize: 20 }));
});
afterAll(async () => {
  for (const api of apis) await api.close();
});
beforeEach(async () => {
  await clear(database().pool);
  await switchSet(database().pool, "datacenter", true);
});

const api = (at = 0) => apis[at % apis.length] as TestApi;

async function reserve(rackId: string, wish: Partial<ReserveRackUnitsInput> = {}, at = 0) {
  const { reserveRackUnits } = await api(at).run(ReserveRackUnitsDocument, {
    input: {
      rackId: globalIdEncode("Rack", rackId),
      heightUnits: 1,
      purpose: "test",
      idempotencyKey: randomUUID(),
      ...wish,
    },
  });
  if (reserveRackUnits === null) throw new Error("no result");
  return reserveRackUnits;
}

async function held(rackId: string, wish: Partial<ReserveRackUnitsInput> = {}) {
  const result = await reserve(rackId, wish);
  if (result.__typename !== "RackUnitsReserved")
    throw new Error(`expected a hold, got ${JSON.stringify(result)}`);
  return result.rackReservation;
}

async function promote(rackReservationId: string, machineId: string, at = 0) {
  const { promoteRackReservation } = await api(at).run(PromoteRackReservationDocument, {
    input: { rackReservationId, machineId: globalIdEncode("Machine", machineId) },
  });
  if (promoteRackReservation === null) throw new Error("no result");
  return promoteRackReservation;
}

/** A machine that stands in a rack; the global id of its placement. */
async function placed(
  rackId: string,
  machineId: string,
  wish: Partial<ReserveRackUnitsInput> = {},
): Promise<string> {
  const result = await promote((await held(rackId, wish)).id, machineId);
  if (result.__typename !== "RackReservationPromoted")
    throw new Error(`expected a placement, got ${JSON.stringify(result)}`);
  return result.placement.id;
}

async function read(
  rackId: string,
  variables: { heightUnits?: number; powerWatts?: number; depth?: "HALF" | "FULL" } = {},
) {
  const { node } = await api().run(RackByIdDocument, { id: globalIdEncode("Rack", rackId), ...variables });
  if (node?.__typename !== "Rack") throw new Error("no rack");
  return node;
}

/** Makes a hold overdue, as time would. */
async function lapse(rackReservationId: string): Promise<void> {
  await database().pool.query(
    `DO $$ BEGIN
       SET LOCAL session_replication_role = replica;
       UPDATE rack_reservation SET held_at = held_at - interval '1 day', expires_at = expires_at - interval '1 day'
       WHERE id = '${uuidOf(rackReservationId)}';
     END $$`,
  );
}

/** What must be true of racks at every moment, read in SQL; one line a breach. */
async function rackBreaches(pool: pg.Pool): Promise<string[]> {
  const { rows } = await pool.query<{ breach: string }>(`
    WITH o AS (SELECT * FROM rack_reservation WHERE state = 'held' OR (state = 'promoted' AND removed_at IS NULL))
    SELECT 'two on one unit: ' || a.id || ' ' || b.id AS breach FROM o a JOIN o b ON a.rack_id = b.rack_id AND a.id < b.id
    WHERE (a.depth = 'full' OR b.depth = 'full' OR a.face = b.face)
      AND a.bottom_unit < b.bottom_unit + b.height_units AND b.bottom_unit < a.bottom_unit + a.height_units
    UNION ALL SELECT 'outside its rack: ' || o.id FROM o JOIN rack r ON r.id = o.rack_id
    WHERE o.bottom_unit < 1 OR o.bottom_unit + o.height_units - 1 > r.height_units
    UNION ALL SELECT 'over budget: ' || r.id FROM rack r
    WHERE r.power_budget_watts < (SELECT coalesce(sum(power_watts), 0) FROM o WHERE o.rack_id = r.id)
    UNION ALL SELECT 'in two places: ' || machine_id FROM o WHERE machine_id IS NOT NULL GROUP BY machine_id HAVING count(*) > 1
    UNION ALL SELECT 'does not fit: ' || o.id FROM o JOIN machine m ON m.id = o.machine_id JOIN rack r ON r.id = o.rack_id
    WHERE m.height_units > o.height_units OR (m.depth = 'full' AND o.depth = 'half') OR m.site_id <> r.site_id
    UNION ALL SELECT 'installed is not told: ' || m.id FROM machine m
    WHERE m.installed <> EXISTS (SELECT FROM o WHERE o.machine_id = m.id)`);
  return rows.map((row) => row.breach);
}

test("10 parallel reservations of U10 to U12 and of U12 to U14: one set wins, and every other answer names the units", async () => {
  const { pool } = database();
  for (let round = 0; round < 10; round++) {
    const rackId = await rack(pool);
    const results = await Promise.all(
      Array.from({ length: 10 }, (_, at) =>
        reserve(rackId, { bottomUnit: at % 2 === 0 ? 10 : 12, heightUnits: 3 }, at),
      ),
    );
    const won = results.flatMap((result, at) => (result.__typename === "RackUnitsReserved" ? [at % 2] : []));
    expect(won).toHaveLength(1);
    for (const [at, result] of results.entries()) {
      if (result.__typename === "RackUnitsReserved") continue;
      const same = at % 2 === won[0];
      const all = at % 2 === 0 ? [10, 11, 12] : [12, 13, 14];
      expect(result).toMatchObject({ __typename: "UnitsOccupied", units: same ? all : [12] });
    }
    expect(await rackBreaches(pool)).toEqual([]);
  }
});

test("parallel callers without a unit spread: 14 of three units fill 42, the fifteenth is told why", async () => {
  const rackId = await rack(database().pool);
  const results = await Promise.all(
    Array.from({ length: 15 }, (_, at) => reserve(rackId, { heightUnits: 3 }, at)),
  );
  expect(results.filter((result) => result.__typename === "RackUnitsReserved")).toHaveLength(14);
  expect(results.find((result) => result.__typename === "NoSpaceInRack")).toMatchObject({
    limitedBy: ["NO_FREE_UNITS"],
    nextAction: "BUY_MORE",
    capacity: { freeUnits: 0, reservedUnits: 42 },
  });
  expect(await rackBreaches(database().pool)).toEqual([]);
});

test("the tightest gap that fits, the lowest of equals", async () => {
  const rackId = await rack(database().pool, { heightUnits: 20 });
  for (const [bottomUnit, heightUnits] of [
    [4, 1],
    [7, 1],
    [10, 1],
  ] as const)
    await held(rackId, { bottomUnit, heightUnits });
  // Gaps: 1-3, 5-6, 8-9, 11-20.
  expect((await held(rackId, { heightUnits: 2 })).bottomUnit).toBe(5);
  expect((await held(rackId, { heightUnits: 2 })).bottomUnit).toBe(8);
  expect((await held(rackId, { heightUnits: 2 })).bottomUnit).toBe(1);
  expect((await held(rackId, { heightUnits: 3 })).bottomUnit).toBe(11);
});

test("a hold lasts four hours by the database's clock, and its row becomes the place: a session that reads all the time never sees the unit free", async () => {
  const { pool } = database();
  const rackId = await rack(pool);
  const hold = await held(rackId, { bottomUnit: 10, heightUnits: 2 });
  const machineId = await machine(pool, { heightUnits: 2 });
  const { rows } = await pool.query(
    "SELECT expires_at - held_at = interval '4 hours' AS four FROM rack_reservation",
  );
  expect(rows).toEqual([{ four: true }]);
  const watcher = await database().connect();
  let reading = true;
  let looks = 0;
  let free = 0;
  const watch = (async () => {
    while (reading) {
      const seen = await watcher.query(
        "SELECT FROM rack_reservation_now WHERE rack_id = $1 AND occupies AND units @> 10",
        [rackId],
      );
      looks += 1;
      if (seen.rowCount !== 1) free += 1;
    }
  })();
  const result = await promote(hold.id, machineId);
  for (let more = 0; more < 20; more++) await pool.query("SELECT 1");
  reading = false;
  await watch;
  await watcher.end();
  expect(result.__typename).toBe("RackReservationPromoted");
  expect(looks).toBeGreaterThan(3);
  expect(free).toBe(0);
  expect(await rackBreaches(pool)).toEqual([]);
});

test("a lapsed hold is not promoted, reads EXPIRED, and gives way to the next caller, with no sweeper running", async () => {
  const { pool } = database();
  const rackId = await rack(pool, { powerBudgetWatts: 100 });
  const hold = await held(rackId, { bottomUnit: 5, powerWatts: 100 });
  await lapse(hold.id);
  expect(await promote(hold.id, await machine(pool))).toMatchObject({
    __typename: "RackReservationExpired",
    rackReservation: { state: "EXPIRED" },
  });
  expect((await read(rackId)).capacity).toMatchObject({
    freeUnits: 42,
    powerFreeWatts: 100,
    reservedUnits: 0,
  });
  const next = await held(rackId, { bottomUnit: 5, powerWatts: 100 });
  expect(next.id).not.toBe(hold.id);
  // In raw SQL as well.
  const late = await held(rackId, { bottomUnit: 9 });
  await lapse(late.id);
  await expect(
    pool.query(
      "UPDATE rack_reservation SET state = 'promoted', settled_at = now(), machine_id = $2 WHERE id = $1",
      [uuidOf(late.id), await machine(pool)],
    ),
  ).rejects.toMatchObject({ constraint: "rack_reservation_deadline_is_kept" });
  expect(await rackBreaches(pool)).toEqual([]);
});

test("the sweeper expires rack holds too; expired and cancelled stay apart", async () => {
  const { pool } = database();
  const rackId = await rack(pool);
  const [over, ended, alive] = [await held(rackId), await held(rackId), await held(rackId)];
  await lapse(over.id);
  const { cancelRackReservation } = await api().run(CancelRackReservationDocument, {
    input: { rackReservationId: ended.id },
  });
  expect(cancelRackReservation?.__typename).toBe("RackReservationCancelled");
  const reports = await Promise.all([
    sweep(api(0).database.db, logOpen("silent")),
    sweep(api(1).database.db, logOpen("silent")),
  ]);
  expect(reports.reduce((sum, { expired }) => sum + expired, 0)).toBe(1);
  const { rows } = await pool.query("SELECT id, state FROM rack_reservation ORDER BY held_at");
  expect(rows).toEqual([
    { id: uuidOf(over.id), state: "expired" },
    { id: uuidOf(ended.id), state: "cancelled" },
    { id: uuidOf(alive.id), state: "held" },
  ]);
  const kinds = await Promise.all(
    [over, ended].map(
      async ({ id }) =>
        (await api().run(CancelRackReservationDocument, { input: { rackReservationId: id } }))
          .cancelRackReservation?.__typename,
    ),
  );
  expect(kinds).toEqual(["RackReservationExpired", "RackReservationSettled"]);
});

test("two promotions of one machine into two racks: one stands, the other is told where", async () => {
  const { pool } = database();
  for (let round = 0; round < 10; round++) {
    const machineId = await machine(pool);
    const holds = [await held(await rack(pool)), await held(await rack(pool))];
    const results = await Promise.all(holds.map((hold, at) => promote(hold.id, machineId, at)));
    expect(results.map((result) => result.__typename).sort()).toEqual([
      "MachineAlreadyPlaced",
      "RackReservationPromoted",
    ]);
  }
  expect(await rackBreaches(pool)).toEqual([]);
});

test("one hold, two machines at once: one is installed, the other told that it is settled", async () => {
  const { pool } = database();
  const hold = await held(await rack(pool));
  const results = await Promise.all([0, 1].map(async (at) => promote(hold.id, await machine(pool), at)));
  expect(results.map((result) => result.__typename).sort()).toEqual([
    "RackReservationPromoted",
    "RackReservationSettled",
  ]);
});

test("the machine must fit: height, depth, site and power, each named; smaller fits", async () => {
  const { pool } = database();
  const rackId = await rack(pool, { powerBudgetWatts: 500 });
  const hold = await held(rackId, { heightUnits: 2, depth: "HALF", powerWatts: 100 });
  const misfit = await machine(pool, { site: "AMS", heightUnits: 3, depth: "full", powerWatts: 501 });
  expect(await promote(hold.id, misfit)).toMatchObject({
    __typename: "MachineDoesNotFit",
    misfits: ["SITE", "HEIGHT", "DEPTH", "POWER"],
  });
  const fit = await machine(pool, { heightUnits: 1, depth: "half", powerWatts: 300 });
  expect(await promote(hold.id, fit)).toMatchObject({
    rackReservation: { state: "PROMOTED", heightUnits: 2, powerWatts: 300 },
  });
  expect((await read(rackId)).capacity.powerFreeWatts).toBe(200);
  expect(await promote(globalIdEncode("RackReservation", randomUUID()), fit)).toMatchObject({
    __typename: "RackReservationNotFound",
  });
  expect(await promote((await held(rackId)).id, randomUUID())).toMatchObject({
    __typename: "MachineNotFound",
  });
});

test.each([
  [
    "half front beside half rear",
    { face: "FRONT", depth: "HALF" },
    { face: "REAR", depth: "HALF" },
    10,
    1,
    null,
  ],
  [
    "half front on half front",
    { face: "FRONT", depth: "HALF" },
    { face: "FRONT", depth: "HALF" },
    10,
    1,
    [10],
  ],
  ["full on half front", { face: "FRONT", depth: "HALF" }, { face: "FRONT", depth: "FULL" }, 10, 1, [10]],
  ["full on half rear", { face: "REAR", depth: "HALF" }, { face: "FRONT", depth: "FULL" }, 10, 1, [10]],
  [
    "2U rear at U9 over full front at U10",
    { face: "FRONT", depth: "FULL" },
    { face: "REAR", depth: "HALF" },
    9,
    2,
    [10],
  ],
  [
    "2U rear at U8 below full front at U10",
    { face: "FRONT", depth: "FULL" },
    { face: "REAR", depth: "HALF" },
    8,
    2,
    null,
  ],
] as const)("depth: %s", async (_name, first, second, bottomUnit, heightUnits, units) => {
  for (const installed of [false, true]) {
    const rackId = await rack(database().pool);
    const there = await held(rackId, { ...first, bottomUnit: 10 });
    if (installed) await promote(there.id, await machine(database().pool, { depth: "half" }));
    const result = await reserve(rackId, { ...second, bottomUnit, heightUnits });
    if (units === null) expect(result.__typename).toBe("RackUnitsReserved");
    else expect(result).toMatchObject({ __typename: "UnitsOccupied", units });
    expect(await rackBreaches(database().pool)).toEqual([]);
  }
});

test("keys: a repeat gets its reservation, other arguments are refused, ten at once make one", async () => {
  const rackId = await rack(database().pool);
  const idempotencyKey = randomUUID();
  const results = await Promise.all(
    Array.from({ length: 10 }, (_, at) => reserve(rackId, { idempotencyKey, heightUnits: 2 }, at)),
  );
  expect(results.filter((result) => result.__typename === "RackUnitsReserved")).toHaveLength(1);
  expect(results.filter((result) => result.__typename === "UnitsAlreadyReserved")).toHaveLength(9);
  expect(await reserve(rackId, { idempotencyKey, heightUnits: 3 })).toMatchObject({
    __typename: "IdempotencyKeyReused",
  });
  const other = await rack(database().pool);
  expect(await reserve(other, { idempotencyKey, heightUnits: 2 })).toMatchObject({
    __typename: "IdempotencyKeyReused",
  });
  const first = results.find((result) => result.__typename === "RackUnitsReserved");
  await lapse(first?.__typename === "RackUnitsReserved" ? first.rackReservation.id : "");
  expect(await reserve(rackId, { idempotencyKey, heightUnits: 2 })).toMatchObject({
    __typename: "RackReservationExpired",
    nextAction: "START_OVER",
  });
  const { rows } = await database().pool.query("SELECT count(*)::integer AS rows FROM rack_reservation");
  expect(rows).toEqual([{ rows: 1 }]);
});

test("one key on two racks at once: one reservation", async () => {
  const { pool } = database();
  const [one, two] = [await rack(pool), await rack(pool)];
  for (let round = 0; round < 10; round++) {
    const idempotencyKey = randomUUID();
    const results = await Promise.all([
      reserve(one, { idempotencyKey }, 0),
      reserve(two, { idempotencyKey }, 1),
    ]);
    expect(results.map((result) => result.__typename).sort()).toEqual([
      "IdempotencyKeyReused",
      "RackUnitsReserved",
    ]);
  }
});

test("units that the rack does not have are bad input; an unknown rack, a closed switch and a full budget are refusals", async () => {
  const { pool } = database();
  const rackId = await rack(pool, { powerBudgetWatts: 100 });
  const ask = "mutation ($input: ReserveRackUnitsInput!) { reserveRackUnits(input: $input) { __typename } }";
  for (const wish of [
    { bottomUnit: 42, heightUnits: 2 },
    { bottomUnit: 0, heightUnits: 1 },
    { bottomUnit: 43, heightUnits: 1 },
  ]) {
    const answer = await api().send(ask, {
      input: { rackId: globalIdEncode("Rack", rackId), purpose: "p", idempotencyKey: randomUUID(), ...wish },
    });
    expect(answer.errors?.[0]?.extensions).toMatchObject({
      code: "BAD_USER_INPUT",
      field: "input.bottomUnit",
    });
  }
  const zero = await api().send(ask, {
    input: {
      rackId: globalIdEncode("Rack", rackId),
      purpose: "p",
      idempotencyKey: randomUUID(),
      heightUnits: 0,
    },
  });
  expect(zero.errors?.[0]).toMatchObject({
    message: expect.stringContaining("half units"),
    extensions: { field: "input.heightUnits" },
  });
  expect(await reserve(randomUUID())).toMatchObject({ __typename: "RackNotFound" });
  expect(await reserve(rackId, { powerWatts: 101 })).toMatchObject({
    __typename: "NoSpaceInRack",
    limitedBy: ["POWER_BUDGET"],
  });
  expect(await reserve(rackId, { powerWatts: 101, bottomUnit: 3 })).toMatchObject({
    __typename: "NoSpaceInRack",
    limitedBy: ["POWER_BUDGET"],
  });
  const hold = await held(rackId);
  await switchSet(pool, "datacenter", false);
  expect(await reserve(rackId)).toMatchObject({ __typename: "ModuleDisabled" });
  expect(await promote(hold.id, await machine(pool))).toMatchObject({ __typename: "ModuleDisabled" });
  expect(
    (await api().run(CancelRackReservationDocument, { input: { rackReservationId: hold.id } }))
      .cancelRackReservation?.__typename,
  ).toBe("RackReservationCancelled");
});

test("labels: from the top, and with another first number; the view shows both faces as labelled", async () => {
  const { pool } = database();
  const rackId = await rack(pool, { heightUnits: 10, numbering: "top_down", startingUnit: 5 });
  // Labels from the top: 5 … 14; the lowest unit is 14.
  const lowest = await held(rackId, { heightUnits: 2 });
  expect(lowest.bottomUnit).toBe(14);
  const named = await held(rackId, { bottomUnit: 7, heightUnits: 2, depth: "HALF" });
  expect(named.bottomUnit).toBe(7);
  expect(await reserve(rackId, { bottomUnit: 8, heightUnits: 2 })).toMatchObject({
    __typename: "UnitsOccupied",
    units: [7],
  });
  const view = await read(rackId);
  expect(view.front.map(({ unit, state }) => `${unit} ${state}`)).toEqual([
    "5 FREE",
    "6 RESERVED",
    "7 RESERVED",
    "8 FREE",
    "9 FREE",
    "10 FREE",
    "11 FREE",
    "12 FREE",
    "13 RESERVED",
    "14 RESERVED",
  ]);
  expect(view.rear.filter(({ state }) => state !== "FREE").map(({ unit }) => unit)).toEqual([13, 14]);
});

test("createRack: a name once a site, an unknown site refused", async () => {
  await rack(database().pool, { name: "R1" });
  const create = async (input: { siteCode: string; name: string }) =>
    (await api().run(CreateRackDocument, { input: { heightUnits: 42, ...input } })).createRack;
  expect(await create({ siteCode: "FRA", name: "R1" })).toMatchObject({
    __typename: "RackNameTaken",
    name: "R1",
  });
  expect(await create({ siteCode: "XXX", name: "R1" })).toMatchObject({ __typename: "SiteNotFound" });
  expect(await create({ siteCode: "FRA", name: "R2" })).toMatchObject({
    __typename: "RackCreated",
    rack: {
      name: "R2",
      numbering: "BOTTOM_UP",
      startingUnit: 1,
      powerBudgetWatts: null,
      site: { code: "FRA" },
    },
  });
});

// ---------------------------------------------------------------- geometry

test("a rack is not shrunk below what stands or is reserved in it, and not made poorer; relabelling moves nothing", async () => {
  const { pool } = database();
  const rackId = await rack(pool, { powerBudgetWatts: 1000 });
  const installed = await placed(rackId, await machine(pool), { bottomUnit: 30, powerWatts: 300 });
  const reserved = await held(rackId, { bottomUnit: 25, powerWatts: 200 });
  const update = async (input: {
    heightUnits?: number;
    powerBudgetWatts?: number | null;
    numbering?: "TOP_DOWN";
  }) =>
    (await api().run(UpdateRackDocument, { input: { rackId: globalIdEncode("Rack", rackId), ...input } }))
      .updateRack;
  expect(await update({ heightUnits: 20 })).toMatchObject({
    __typename: "GeometryConflict",
    placements: [{ id: installed }],
    rackReservations: [{ id: reserved.id }],
  });
  expect(await update({ heightUnits: 29 })).toMatchObject({
    placements: [{ id: installed }],
    rackReservations: [],
  });
  expect(await update({ powerBudgetWatts: 499 })).toMatchObject({ __typename: "GeometryConflict" });
  expect(await update({ heightUnits: 30, powerBudgetWatts: 500, numbering: "TOP_DOWN" })).toMatchObject({
    __typename: "RackUpdated",
    rack: { heightUnits: 30, powerBudgetWatts: 500 },
  });
  expect((await read(rackId)).front.find(({ state }) => state === "INSTALLED")?.unit).toBe(1);
  expect(await update({ powerBudgetWatts: null })).toMatchObject({ rack: { powerBudgetWatts: null } });
  for (const set of [
    "height_units = 29",
    "power_budget_watts = 499",
    "site_id = (SELECT id FROM site WHERE code = 'AMS')",
  ]) {
    await machine(pool, { site: "AMS" });
    await expect(pool.query(`UPDATE rack SET ${set} WHERE id = $1`, [rackId]), set).rejects.toMatchObject({
      constraint: "rack_holds_what_it_has",
    });
  }
  expect(await rackBreaches(pool)).toEqual([]);
});

test("a machine that grows needs room for it: its place grows, or everything in the way is listed", async () => {
  const { pool } = database();
  const rackId = await rack(pool);
  const lower = await machine(pool, { depth: "half" });
  const upper = await machine(pool, { depth: "half" });
  const at10 = await placed(rackId, lower, { bottomUnit: 10, depth: "HALF" });
  const at11 = await placed(rackId, upper, { bottomUnit: 11, depth: "HALF" });
  const behind = await held(rackId, { bottomUnit: 11, depth: "HALF", face: "REAR" });
  const set = async (
    machineId: string,
    input: { heightUnits?: number; depth?: "FULL"; powerWatts?: number },
  ) =>
    (
      await api().run(SetMachineGeometryDocument, {
        input: { machineId: globalIdEncode("Machine", machineId), ...input },
      })
    ).setMachineGeometry;
  expect(await set(lower, { heightUnits: 2 })).toMatchObject({
    __typename: "GeometryConflict",
    placements: [{ id: at10 }, { id: at11 }],
    rackReservations: [],
  });
  expect(await set(upper, { depth: "FULL" })).toMatchObject({
    __typename: "GeometryConflict",
    placements: [{ id: at11 }],
    rackReservations: [{ id: behind.id }],
  });
  expect(await set(lower, { depth: "FULL" })).toMatchObject({
    machine: { depth: "FULL", placement: { id: at10, depth: "FULL" } },
  });
  expect(await set(upper, { heightUnits: 3 })).toMatchObject({
    machine: { heightUnits: 3, placement: { id: at11, heightUnits: 3 } },
  });
  await expect(
    pool.query("UPDATE machine SET height_units = 4 WHERE id = $1", [upper]),
  ).rejects.toMatchObject({ constraint: "machine_fits_its_place" });
  expect(await rackBreaches(pool)).toEqual([]);
});

test("moves are judged as a whole: two equal machines trade places, two on one unit are refused, and racks trade within their budgets", async () => {
  const { pool } = database();
  const [left, right] = [
    await rack(pool, { powerBudgetWatts: 100 }),
    await rack(pool, { powerBudgetWatts: 100 }),
  ];
  const [a, b] = [
    await placed(left, await machine(pool, { powerWatts: 100 }), { bottomUnit: 1 }),
    await placed(right, await machine(pool, { powerWatts: 100 }), { bottomUnit: 1 }),
  ];
  const move = async (moves: { placementId: string; rack: string; bottomUnit: number }[]) =>
    (
      await api().run(MovePlacementsDocument, {
        input: {
          moves: moves.map(({ rack: to, ...rest }) => ({ ...rest, rackId: globalIdEncode("Rack", to) })),
        },
      })
    ).movePlacements;
  expect(
    await move([
      { placementId: a, rack: right, bottomUnit: 1 },
      { placementId: b, rack: left, bottomUnit: 1 },
    ]),
  ).toMatchObject({
    __typename: "PlacementsMoved",
    placements: [
      { id: a, rack: { id: globalIdEncode("Rack", right) } },
      { id: b, rack: { id: globalIdEncode("Rack", left) } },
    ],
  });
  expect(
    await move([
      { placementId: a, rack: right, bottomUnit: 7 },
      { placementId: b, rack: right, bottomUnit: 7 },
    ]),
  ).toMatchObject({
    __typename: "UnitsOccupied",
    units: [7],
  });
  expect(await move([{ placementId: a, rack: left, bottomUnit: 7 }])).toMatchObject({
    __typename: "PowerBudgetExceeded",
  });
  expect(
    await move([{ placementId: globalIdEncode("Placement", randomUUID()), rack: left, bottomUnit: 7 }]),
  ).toMatchObject({
    __typename: "PlacementNotFound",
    moves: [0],
  });
  const elsewhere = await rack(pool, { site: "AMS" });
  expect(await move([{ placementId: a, rack: elsewhere, bottomUnit: 7 }])).toMatchObject({
    __typename: "MachineDoesNotFit",
    misfits: ["SITE"],
  });
  const { rows } = await pool.query(
    "SELECT count(*)::integer AS moved FROM rack_reservation WHERE bottom_unit <> 1",
  );
  expect(rows).toEqual([{ moved: 0 }]);
  expect(await rackBreaches(pool)).toEqual([]);
});

test("a machine that is taken out leaves its place on record, and may stand elsewhere", async () => {
  const { pool } = database();
  const rackId = await rack(pool);
  const machineId = await machine(pool);
  const placement = await placed(rackId, machineId, { bottomUnit: 3 });
  const remove = async () =>
    (await api().run(RemovePlacementDocument, { input: { placementId: placement } })).removePlacement;
  const results = await Promise.all([remove(), remove()]);
  expect(results.map((result) => result?.__typename).sort()).toEqual([
    "PlacementAlreadyRemoved",
    "PlacementRemoved",
  ]);
  await placed(rackId, machineId, { bottomUnit: 3 });
  const { rows } = await pool.query(
    "SELECT removed_at IS NOT NULL AS removed FROM rack_reservation WHERE machine_id = $1 ORDER BY held_at",
    [machineId],
  );
  expect(rows).toEqual([{ removed: true }, { removed: false }]);
  expect(await rackBreaches(pool)).toEqual([]);
});

// ---------------------------------------------------------------- what the database alone refuses

const HOLD = `INSERT INTO rack_reservation (rack_id, bottom_unit, height_units, face, depth, power_watts, purpose, idempotency_key, request, expires_at)
  VALUES ($1, $2, $3, $4, $5, $6, 'by hand', $7, '{}', now() + interval '1 hour')`;

test("rack_units_are_had_once: two sessions, overlapping units; the second waits, and is refused when the first commits", async () => {
  const { pool } = database();
  const rackId = await rack(pool);
  const [one, two] = [await database().connect(), await database().connect()];
  try {
    await one.query("BEGIN");
    await one.query(HOLD, [rackId, 10, 3, "front", "full", 0, unique("key")]);
    const second = two.query(HOLD, [rackId, 12, 3, "rear", "half", 0, unique("key")]).then(
      () => null,
      (error: { constraint: string }) => error.constraint,
    );
    await waitUntilBlocked(pool, (two as unknown as { processID: number }).processID);
    await one.query("COMMIT");
    expect(await second).toBe("rack_units_are_had_once");
  } finally {
    await one.end();
    await two.end();
  }
  expect(await rackBreaches(pool)).toEqual([]);
});

test("rack_power_budget_is_kept: two sessions whose draws fit one by one; the second waits, and is refused", async () => {
  const { pool } = database();
  const rackId = await rack(pool, { powerBudgetWatts: 100 });
  const [one, two] = [await database().connect(), await database().connect()];
  try {
    await one.query("BEGIN");
    await one.query(HOLD, [rackId, 1, 1, "front", "full", 60, unique("key")]);
    const second = two.query(HOLD, [rackId, 5, 1, "front", "full", 60, unique("key")]).then(
      () => null,
      (error: { constraint: string }) => error.constraint,
    );
    await waitUntilBlocked(pool, (two as unknown as { processID: number }).processID);
    await one.query("COMMIT");
    expect(await second).toBe("rack_power_budget_is_kept");
  } finally {
    await one.end();
    await two.end();
  }
  expect(await rackBreaches(pool)).toEqual([]);
});

test("the other arbiters in raw SQL: within the rack, one place a machine, a fitting machine, one end, a kept row", async () => {
  const { pool } = database();
  const rackId = await rack(pool, { heightUnits: 10 });
  const refused = (sql: string, values: unknown[], constraint: string) =>
    expect(pool.query(sql, values), constraint).rejects.toMatchObject({ constraint });
  await refused(HOLD, [rackId, 10, 2, "front", "full", 0, unique("key")], "rack_reservation_within_rack");
  const machineId = await machine(pool);
  await placed(rackId, machineId);
  const hold = uuidOf((await held(rackId)).id);
  const install =
    "UPDATE rack_reservation SET state = 'promoted', settled_at = now(), machine_id = $2 WHERE id = $1";
  await refused(install, [hold, machineId], "rack_reservation_one_place_per_machine");
  await refused(install, [hold, await machine(pool, { heightUnits: 2 })], "rack_reservation_machine_fits");
  await refused(install, [hold, await machine(pool, { site: "AMS" })], "rack_reservation_machine_fits");
  await pool.query("SELECT rack_cancel($1)", [hold]);
  await refused(
    "UPDATE rack_reservation SET state = 'held', settled_at = NULL WHERE id = $1",
    [hold],
    "rack_reservation_ends_once",
  );
  await refused("DELETE FROM rack_reservation WHERE id = $1", [hold], "rack_reservation_is_kept");
});

test("without the exclusion constraint, and without the trigger that locks the rack, the same writes break the invariants", async () => {
  const { pool } = bare();
  await pool.query(`ALTER TABLE rack_reservation DROP CONSTRAINT rack_units_are_had_once;
    ALTER TABLE rack_reservation DISABLE TRIGGER rack_reservation_fits`);
  const rackId = await rack(pool, { powerBudgetWatts: 100 });
  await pool.query(HOLD, [rackId, 10, 3, "front", "full", 60, unique("key")]);
  await pool.query(HOLD, [rackId, 12, 3, "rear", "half", 60, unique("key")]);
  expect((await rackBreaches(pool)).map((line) => line.split(":")[0]).sort()).toEqual([
    "over budget",
    "two on one unit",
  ]);
});

test("geometry comes with createMachine and with the import; an installed machine keeps its site, height and depth there", async () => {
  const { pool } = database();
  await rack(pool);
  const created = await api().send(
    "mutation ($input: CreateMachineInput!) { createMachine(input: $input) { ... on MachineCreated { machine { heightUnits depth powerWatts placement { id } } } } }",
    {
      input: {
        ...{
          assetTag: unique("G"),
          siteCode: "FRA",
          manufacturer: "Dell",
          model: "R450",
          cpuCores: 8,
          memoryGib: 64,
          storageGib: 0,
        },
        ...{ heightUnits: 4, depth: "HALF", powerWatts: 350 },
      },
    },
  );
  expect(created.data).toEqual({
    createMachine: { machine: { heightUnits: 4, depth: "HALF", powerWatts: 350, placement: null } },
  });
  const header =
    "asset_tag,site,manufacturer,model,cpu_cores,memory_gib,storage_gib,height_units,depth,power_watts";
  const [tag, plain] = [unique("I"), unique("I")];
  const file = (height: string, depth: string, watts: string) =>
    machinesImport(
      api().database.db,
      (async function* () {
        yield `${header}\n${tag},FRA,Dell,R450,8,64,0,${height},${depth},${watts}\n${plain},FRA,Dell,R450,8,64,0,,,\n`;
      })(),
      { dryRun: false },
    );
  expect(await file("2", "Half", "200")).toMatchObject({ kind: "MachinesImported", created: 2 });
  const measures = async () =>
    (
      await pool.query(
        "SELECT asset_tag = $1 AS given, height_units, depth, power_watts FROM machine WHERE asset_tag = ANY($2) ORDER BY 1 DESC",
        [tag, [tag, plain]],
      )
    ).rows;
  const before = [
    { given: true, height_units: 2, depth: "half", power_watts: 200 },
    { given: false, height_units: 1, depth: "full", power_watts: null },
  ];
  expect(await measures()).toEqual(before);
  const { rows } = await pool.query<{ id: string }>("SELECT id FROM machine WHERE asset_tag = $1", [tag]);
  await placed(await rack(pool), rows[0]?.id as string, { heightUnits: 2, depth: "HALF" });
  const refused = await file("3", "full", "200");
  expect(refused).toMatchObject({
    kind: "ImportRefused",
    problems: [
      {
        line: 2,
        column: "height_units",
        reason: expect.stringContaining("installed in a rack and keeps its height_units (2, not 3)"),
      },
      { line: 2, column: "depth" },
    ],
  });
  expect(await measures()).toEqual(before);
  expect(await file("2", "half", "250")).toMatchObject({ kind: "MachinesImported", updated: 1 });
  expect(await rackBreaches(pool)).toEqual([]);
});

// ---------------------------------------------------------------- capacity

test("sellable is what really succeeds, one after the other: any rack, against placing until it is refused", async () => {
  const { pool } = database();
  const occupant = fc.record({
    bottom: fc.integer({ min: 1, max: 12 }),
    height: fc.integer({ min: 1, max: 4 }),
    face: fc.constantFrom("front", "rear"),
    depth: fc.constantFrom("half", "full"),
    power: fc.integer({ min: 0, max: 60 }),
  });
  await fc.assert(
    fc.asyncProperty(
      fc.array(occupant, { maxLength: 8 }),
      fc.integer({ min: 1, max: 4 }),
      fc.integer({ min: 0, max: 80 }),
      fc.constantFrom("HALF" as const, "FULL" as const),
      fc.option(fc.integer({ min: 0, max: 400 }), { nil: null }),
      async (occupants, heightUnits, powerWatts, depth, powerBudgetWatts) => {
        const rackId = await rack(pool, { heightUnits: 12, powerBudgetWatts });
        for (const { bottom, height, face, depth: of, power } of occupants) {
          // Those that do not fit are left out by the database.
          await pool
            .query(HOLD, [rackId, bottom, height, face, of, power, unique("key")])
            .catch(() => undefined);
        }
        const { capacity } = await read(rackId, { heightUnits, powerWatts, depth });
        let placements = 0;
        let limits: readonly string[] = [];
        for (;;) {
          const result = await reserve(rackId, { heightUnits, powerWatts, depth });
          if (result.__typename === "NoSpaceInRack") {
            limits = result.limitedBy;
            break;
          }
          expect(result.__typename).toBe("RackUnitsReserved");
          placements += 1;
        }
        expect(capacity.asked.placements).toBe(placements);
        expect([...capacity.asked.limitedBy].sort()).toEqual([...limits].sort());
      },
    ),
    { numRuns: 25 },
  );
  expect(await rackBreaches(pool)).toEqual([]);
});

test("free is not sellable: ten free units in single pieces take no machine of two", () => {
  expect(sellableIn([1, 1, 1], null, 2, 0)).toEqual({ placements: 0, limitedBy: ["not_contiguous"] });
  expect(sellableIn([1], null, 2, 0)).toEqual({ placements: 0, limitedBy: ["no_free_units"] });
  expect(sellableIn([10], 250, 1, 100)).toEqual({ placements: 2, limitedBy: ["power_budget"] });
  expect(sellableIn([2], 200, 1, 100)).toEqual({
    placements: 2,
    limitedBy: ["no_free_units", "power_budget"],
  });
});

test("a list of racks with everything about each takes as many statements for thirty as for three", async () => {
  const { pool } = database();
  const statements = async () => {
    let taken = 0;
    const count = () => {
      taken += 1;
    };
    const client = api().database.pool;
    client.on("acquire", count);
    const { data, errors } = await api().send<{ racks: unknown[] }>(
      '{ racks(siteCode: "FRA") { name site { code } capacity { freeUnits reservedUnits sellable(heightUnits: 2) { placements } } elevation { unit state machine { assetTag } rackReservation { id } } } }',
    );
    client.off("acquire", count);
    expect(errors).toBeUndefined();
    return { racks: data?.racks.length, taken };
  };
  const fill = async (count: number) => {
    for (let index = 0; index < count; index++) await placed(await rack(pool), await machine(pool));
  };
  await fill(3);
  const few = await statements();
  await fill(27);
  expect(await statements()).toEqual({ racks: 30, taken: few.taken });
});

test("rackSpace: the racks that would take it, the tightest gap first, then the least power left over", async () => {
  const { pool } = database();
  const tight = await rack(pool, { name: "tight", heightUnits: 4 });
  await held(tight, { bottomUnit: 1, heightUnits: 1 });
  await rack(pool, { name: "roomy" });
  await rack(pool, { name: "poor", heightUnits: 3, powerBudgetWatts: 50 });
  await rack(pool, { name: "rich", heightUnits: 3, powerBudgetWatts: 500 });
  await rack(pool, { name: "elsewhere", site: "AMS", heightUnits: 3 });
  const { rackSpace } = await api().run(RackSpaceDocument, {
    siteCode: "FRA",
    heightUnits: 3,
    powerWatts: 100,
  });
  expect(
    rackSpace.map(({ rack: { name }, bottomUnit, gapUnits, powerFreeWatts }) => [
      name,
      bottomUnit,
      gapUnits,
      powerFreeWatts,
    ]),
  ).toEqual([
    ["rich", 1, 3, 500],
    ["tight", 2, 3, null],
    ["roomy", 1, 42, null],
  ]);
});

test("an order may ask for machines that stand in a rack: NOT_INSTALLED in the preview, and never such a machine in the hold", async () => {
  const { pool } = database();
  const [acme] = (await organizations(pool, 1)) as [string];
  const loose = await machine(pool, { assetTag: unique("LOOSE") });
  const installed = await machine(pool, { assetTag: unique("RACKED"), cpuCores: 64 });
  await placed(await rack(pool), installed);
  const preview = await api().send<{ allocationPreview: unknown }>(
    "{ allocationPreview(requirements: { installed: true }) { eligible rejections { reason kind machines } } }",
  );
  expect(preview.data).toEqual({
    allocationPreview: {
      eligible: 1,
      rejections: [{ reason: "NOT_INSTALLED", kind: "FILTERED", machines: 1 }],
    },
  });
  const reserved = await api().send<{ reserveMachine: { reservation: { machine: { id: string } } } }>(
    "mutation ($input: ReserveMachineInput!) { reserveMachine(input: $input) { __typename ... on MachineReserved { reservation { machine { id } } } } }",
    order(acme, { installed: true }),
  );
  expect(reserved.data?.reserveMachine.reservation.machine.id).toBe(globalIdEncode("Machine", installed));
  const next = await api().send(
    "mutation ($input: ReserveMachineInput!) { reserveMachine(input: $input) { __typename } }",
    order(acme, { installed: true }),
  );
  expect(next.data).toEqual({ reserveMachine: { __typename: "NothingAvailable" } });
  expect(loose).not.toBe(installed);
});

test("a thousand random operations over three racks: after each, the invariants hold in SQL", async () => {
  const { pool } = database();
  // A generator of its own, so that a failure can be repeated.
  let seed = 20_261_201;
  const random = (max: number) => {
    seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648;
    return Math.floor((seed / 2_147_483_648) * max);
  };
  const pick = <T>(of: readonly T[]): T => of[random(of.length)] as T;
  const racks = [
    await rack(pool, { powerBudgetWatts: 1500 }),
    await rack(pool, { heightUnits: 20 }),
    await rack(pool, { numbering: "top_down" }),
  ];
  const machines: string[] = [];
  for (let index = 0; index < 30; index++) {
    machines.push(
      await machine(pool, {
        heightUnits: 1 + random(3),
        depth: pick(["half", "full"] as const),
        powerWatts: random(200),
      }),
    );
  }
  const rows: string[] = [];
  const placements: string[] = [];
  const outcomes = new Map<string, number>();
  for (let step = 0; step < 1000; step++) {
    const kind = pick([
      "reserve",
      "reserve",
      "reserve",
      "promote",
      "promote",
      "cancel",
      "remove",
      "move",
      "rack",
      "machine",
      "lapse",
    ] as const);
    const row = rows.length === 0 ? randomUUID() : pick(rows);
    const call = async (sql: string, values: unknown[]) =>
      String(
        ((await pool.query<{ outcome: string | null }>(sql, values)).rows[0] as { outcome: string | null })
          .outcome,
      );
    let outcome = "";
    switch (kind) {
      case "reserve": {
        const { rows: answer } = await pool.query<{ outcome: string; reservation_id: string | null }>(
          "SELECT outcome, reservation_id FROM rack_reserve($1, $2, $3, $4, $5, $6, 'p', $7, '{}', 3600)",
          [
            pick(racks),
            1 + random(4),
            random(3) === 0 ? 1 + random(40) : null,
            pick(["front", "rear"]),
            pick(["half", "full"]),
            random(300),
            unique("key"),
          ],
        );
        outcome = String(answer[0]?.outcome);
        if (outcome === "reserved") rows.push(String(answer[0]?.reservation_id));
        break;
      }
      case "promote":
        outcome = await call("SELECT outcome FROM rack_promote($1, $2)", [row, pick(machines)]);
        if (outcome === "promoted") placements.push(row);
        break;
      case "cancel":
        outcome = await call("SELECT rack_cancel($1) AS outcome", [row]);
        break;
      case "remove":
        outcome = await call("SELECT placement_remove($1) AS outcome", [row]);
        break;
      case "move":
        outcome = await call("SELECT outcome FROM placements_move($1)", [
          JSON.stringify(
            [...new Set(placements.length === 0 ? [row] : [pick(placements), pick(placements)])].map(
              (placement) => ({
                placement,
                rack: pick(racks),
                bottom: 1 + random(40),
                face: pick(["front", "rear"]),
              }),
            ),
          ),
        ]);
        break;
      case "rack":
        outcome = await call("SELECT outcome FROM rack_edit($1, NULL, $2, NULL, NULL, false, NULL)", [
          pick(racks),
          15 + random(30),
        ]);
        break;
      case "machine":
        outcome = await call("SELECT outcome FROM machine_edit_geometry($1, $2, $3, true, $4)", [
          pick(machines),
          1 + random(3),
          pick(["half", "full", null]),
          random(250),
        ]);
        break;
      case "lapse":
        if (random(3) === 0) await lapse(globalIdEncode("RackReservation", row));
        outcome = "lapsed";
    }
    outcomes.set(`${kind} ${outcome}`, (outcomes.get(`${kind} ${outcome}`) ?? 0) + 1);
    expect(await rackBreaches(pool), `step ${step}: ${kind} ${outcome}`).toEqual([]);
  }
  // The walk has been everywhere.
  for (const expected of [
    "reserve reserved",
    "reserve occupied",
    "reserve no_space",
    "promote promoted",
    "promote misfit",
    "promote placed",
    "promote expired",
    "cancel cancelled",
    "remove removed",
    "move moved",
    "move occupied",
    "rack set",
    "rack conflict",
    "machine set",
    "machine conflict",
  ]) {
    expect(outcomes.get(expected) ?? 0, `${expected} in ${JSON.stringify([...outcomes])}`).toBeGreaterThan(0);
  }
});
