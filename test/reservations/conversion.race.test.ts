import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import {
  CancelReservationDocument,
  ConvertReservationDocument,
  ExtendReservationDocument,
  ReleaseBindingDocument,
  ReserveMachineDocument,
  SetMachineStatusDocument,
} from "../support/operations.ts";
import { breaches, clear, hold, machine, order, organizations, switchSet, unique } from "../support/world.ts";

const database = useTestDatabase();
const apis: TestApi[] = [];
let acme: string;
let globex: string;

beforeAll(async () => {
  for (let index = 0; index < 2; index++) apis.push(await startApi(database().url));
  await switchSet(database().pool, "datacenter", true);
  [acme, globex] = (await organizations(database().pool, 2)) as [string, string];
});
afterAll(async () => {
  for (const api of apis) await api.close();
});
beforeEach(() => clear(database().pool));

const api = (at: number) => apis[at % apis.length] as TestApi;
const gid = (id: string) => globalIdEncode("Reservation", id);

async function convert(at: number, id: string) {
  const input = { reservationId: gid(id), serviceReference: unique("svc") };
  return (await api(at).run(ConvertReservationDocument, { input })).convertReservation;
}
const cancel = async (at: number, id: string) =>
  (await api(at).run(CancelReservationDocument, { input: { reservationId: gid(id) } })).cancelReservation;
const kinds = (results: readonly ({ __typename: string } | null)[]) =>
  results.map((result) => result?.__typename).sort();

test("five conversions of one hold: one binding, four are told of it (H05)", async () => {
  for (let round = 0; round < 10; round++) {
    const id = await hold(database().pool, await machine(database().pool), { organization: acme });
    const results = await Promise.all(Array.from({ length: 5 }, (_, index) => convert(index, id)));
    expect(kinds(results)).toEqual([...Array(4).fill("AlreadyConverted"), "ReservationConverted"]);
    const bindings = results.flatMap((result) =>
      result !== null && "binding" in result ? [result.binding.id] : [],
    );
    expect(new Set(bindings).size).toBe(1);
  }
  expect(await breaches(database().pool)).toEqual([]);
});

test("conversion against cancellation: one of the two, and the other is told which", async () => {
  for (let round = 0; round < 20; round++) {
    const id = await hold(database().pool, await machine(database().pool), { organization: acme });
    const results = await Promise.all([convert(0, id), cancel(1, id)]);
    expect([
      ["AlreadyConverted", "ReservationConverted"],
      ["ReservationCancelled", "ReservationReleased"],
    ]).toContainEqual(kinds(results));
  }
  expect(await breaches(database().pool)).toEqual([]);
});

test("two cancellations, then the sweeper's function: the machine is given back once (H06)", async () => {
  const { pool } = database();
  const id = await hold(pool, await machine(pool), { organization: acme });
  expect(kinds(await Promise.all([cancel(0, id), cancel(1, id)]))).toEqual([
    "ReservationCancelled",
    "ReservationReleased",
  ]);
  const { rows } = await pool.query("SELECT reservation_expire($1) AS outcome", [id]);
  expect(rows).toEqual([{ outcome: "not_due" }]);
  expect(await breaches(pool)).toEqual([]);
});

test("a deadline that passes while the conversion waits for the machine is judged after the wait", async () => {
  const { pool } = database();
  const machineId = await machine(pool);
  const id = await hold(pool, machineId, { organization: acme, endsIn: 2 });
  const keeper = await database().connect();
  await keeper.query("BEGIN");
  await keeper.query("SELECT FROM machine WHERE id = $1 FOR UPDATE", [machineId]);
  const converting = convert(0, id);
  // The statement began before the deadline; now() would still say so when it wakes up.
  await waitUntil(async () => {
    const { rows } = await pool.query(
      "SELECT expires_at <= clock_timestamp() AS over FROM reservation WHERE id = $1",
      [id],
    );
    return (rows[0] as { over: boolean }).over;
  }, "the hold is overdue");
  await keeper.query("COMMIT");
  await keeper.end();
  expect((await converting)?.__typename).toBe("ReservationExpired");
  const { rowCount } = await pool.query("SELECT FROM service_binding");
  expect(rowCount).toBe(0);
});

test("an overdue hold: its owner converts while somebody else reserves; only the new one has the machine (H04)", async () => {
  const { pool } = database();
  for (let round = 0; round < 20; round++) {
    const id = await hold(pool, await machine(pool), { organization: acme, endsIn: -1 });
    const [late, next] = await Promise.all([
      convert(0, id),
      api(1).run(ReserveMachineDocument, order(globex)),
    ]);
    expect(late?.__typename).toBe("ReservationExpired");
    expect(["MachineReserved", "SomeoneWasFaster"]).toContain(next.reserveMachine?.__typename);
    await clear(pool);
  }
});

test("two extensions at once add the hold time once", async () => {
  const id = await hold(database().pool, await machine(database().pool), { organization: acme });
  const results = await Promise.all(
    [0, 1].map(
      async (at) =>
        (await api(at).run(ExtendReservationDocument, { input: { reservationId: gid(id) } }))
          .extendReservation,
    ),
  );
  expect(kinds(results)).toEqual(["ExtensionLimitReached", "ReservationExtended"]);
});

test("an order that is counted while a hold is being extended waits for it: the limit holds", async () => {
  const { pool } = database();
  await machine(pool);
  await pool.query("UPDATE organization SET hold_limit = 1 WHERE id = $1", [acme]);
  const id = await hold(pool, await machine(pool), { organization: acme, endsIn: 1 });
  const keeper = await database().connect();
  try {
    await keeper.query("BEGIN");
    await keeper.query("SELECT reservation_extend($1, NULL, false)", [id]);
    // The old deadline passes; only the uncommitted one keeps the hold alive.
    await waitUntil(async () => {
      const { rows } = await pool.query(
        "SELECT expires_at <= clock_timestamp() AS over FROM reservation WHERE id = $1",
        [id],
      );
      return (rows[0] as { over: boolean }).over;
    }, "the old deadline has passed");
    const { rows } = await keeper.query<{ pid: number }>("SELECT pg_backend_pid() AS pid");
    const ordering = api(1).run(ReserveMachineDocument, order(acme));
    await waitUntil(async () => {
      const blocked = await pool.query(
        "SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))",
        [rows[0]?.pid],
      );
      return blocked.rowCount === 1;
    }, "the order waits for the extension");
    await keeper.query("COMMIT");
    expect((await ordering).reserveMachine?.__typename).toBe("HoldLimitReached");
  } finally {
    await keeper.end();
    await pool.query("UPDATE organization SET hold_limit = NULL WHERE id = $1", [acme]);
  }
});

test("two releases at once: one, and the other is told; the machine is in CLEANING", async () => {
  const { pool } = database();
  const id = await hold(pool, await machine(pool), { organization: acme });
  const converted = await convert(0, id);
  const bindingId = converted?.__typename === "ReservationConverted" ? converted.binding.id : "";
  const results = await Promise.all(
    [0, 1].map(
      async (at) => (await api(at).run(ReleaseBindingDocument, { input: { bindingId } })).releaseBinding,
    ),
  );
  expect(kinds(results)).toEqual(["AlreadyReleased", "BindingReleased"]);
  const { rows } = await pool.query("SELECT status, occupancy FROM machine");
  expect(rows).toEqual([{ status: "cleaning", occupancy: "free" }]);
});

test("reserving against retiring: the machine is either held or retired, never both", async () => {
  const { pool } = database();
  for (let round = 0; round < 20; round++) {
    const machineId = await machine(pool);
    const [reserved, retired] = await Promise.all([
      api(0).run(ReserveMachineDocument, order(acme)),
      api(1).run(SetMachineStatusDocument, {
        input: { machineId: globalIdEncode("Machine", machineId), status: "RETIRED" },
      }),
    ]);
    const { rows } = await pool.query("SELECT status, occupancy FROM machine");
    if (retired.setMachineStatus?.__typename === "MachineInUse") {
      expect(reserved.reserveMachine?.__typename).toBe("MachineReserved");
      expect(rows).toEqual([{ status: "ready", occupancy: "held" }]);
    } else {
      expect(["NothingAvailable", "SomeoneWasFaster"]).toContain(reserved.reserveMachine?.__typename);
      expect(rows).toEqual([{ status: "retired", occupancy: "free" }]);
    }
    await clear(pool);
  }
});

test("a machine that stays locked: the caller is told to repeat, and nothing was changed", async () => {
  const { pool } = database();
  const machineId = await machine(pool);
  const id = await hold(pool, machineId, { organization: acme });
  const keeper = await database().connect();
  try {
    await keeper.query("BEGIN");
    await keeper.query("SELECT FROM machine WHERE id = $1 FOR UPDATE", [machineId]);
    const answer = await api(0).send(
      `mutation { convertReservation(input: {reservationId: "${gid(id)}", serviceReference: "s"}) { __typename } }`,
    );
    expect(answer.data).toEqual({ convertReservation: null });
    expect(answer.errors?.[0]?.extensions).toEqual({ code: "TRY_AGAIN" });
  } finally {
    await keeper.end();
  }
  expect((await convert(0, id))?.__typename).toBe("ReservationConverted");
});
