import { randomUUID } from "node:crypto";
import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { globalIdEncode } from "../../src/graphql/globalId.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { useTestDatabase } from "../support/database.ts";
import {
  CancelReservationDocument,
  ConvertReservationDocument,
  ExtendReservationDocument,
  MachinesDocument,
  ReleaseBindingDocument,
  ReservationByIdDocument,
  ReservationsDocument,
  ReserveMachineDocument,
  SetMachineStatusDocument,
} from "../support/operations.ts";
import {
  breaches,
  clear,
  hold,
  machine,
  machines,
  order,
  organizations,
  switchSet,
} from "../support/world.ts";

// Every member of every union of reservations, as an outside client meets it.

const database = useTestDatabase();
let api: TestApi;
let acme: string;
let globex: string;
let tenant: string;

beforeAll(async () => {
  api = await startApi(database().url);
  [acme, globex] = (await organizations(database().pool, 2)) as [string, string];
  tenant = await api.token("tenant", acme);
});
afterAll(() => api.close());
beforeEach(async () => {
  await clear(database().pool);
  await database().pool.query("DELETE FROM feature_override");
  await switchSet(database().pool, "datacenter", true);
});

const reservationGid = (id: string) => globalIdEncode("Reservation", id);

async function reserve(variables = order(acme), secret?: string) {
  const { reserveMachine } = await api.run(ReserveMachineDocument, variables, secret);
  return reserveMachine;
}
async function reserved(variables = order(acme)) {
  const result = await reserve(variables);
  if (result?.__typename !== "MachineReserved")
    throw new Error(`expected a reservation, got ${JSON.stringify(result)}`);
  return result.reservation;
}
const convert = async (reservationId: string, secret?: string) =>
  (await api.run(ConvertReservationDocument, { input: { reservationId, serviceReference: "svc-1" } }, secret))
    .convertReservation;
const cancel = async (reservationId: string, reason?: string) =>
  (await api.run(CancelReservationDocument, { input: { reservationId, reason: reason ?? null } }))
    .cancelReservation;
const extend = async (reservationId: string, secret?: string) =>
  (await api.run(ExtendReservationDocument, { input: { reservationId } }, secret)).extendReservation;
const release = async (bindingId: string) =>
  (await api.run(ReleaseBindingDocument, { input: { bindingId } })).releaseBinding;

async function lapse(reservationId: string): Promise<void> {
  const uuid = Buffer.from(reservationId, "base64").toString().split(":")[1];
  // The row is moved into the past as a whole; its frozen parts are let through for that.
  await database().pool.query(`DO $$ BEGIN
    SET LOCAL session_replication_role = replica;
    UPDATE reservation SET held_at = held_at - interval '1 hour', expires_at = expires_at - interval '1 hour' WHERE id = '${uuid}';
  END $$`);
}

test("MachineReserved: the closest fit, with its frozen reason, for 15 minutes by the database's clock", async () => {
  const { pool } = database();
  await machine(pool, { assetTag: "BIG", cpuCores: 64, memoryGib: 512 });
  await machine(pool, { assetTag: "MORE-MEMORY", cpuCores: 8, memoryGib: 128 });
  await machine(pool, { assetTag: "CLOSEST", cpuCores: 8, memoryGib: 64, labels: ["nvme", "ecc"] });
  await machine(pool, { assetTag: "TOO-SMALL", cpuCores: 4 });
  const result = await reserve(
    order(acme, { siteCode: "FRA", minCpuCores: 6, minMemoryGib: 32, labels: ["nvme"] }),
  );
  expect(result).toMatchObject({
    __typename: "MachineReserved",
    reservation: {
      state: "HELD",
      settledAt: null,
      binding: null,
      orderReference: "order-1",
      machine: { assetTag: "CLOSEST" },
      choice: {
        rank: 1,
        skipped: 0,
        lostRaces: 0,
        assetTag: "CLOSEST",
        siteCode: "FRA",
        cpuCores: 8,
        memoryGib: 64,
        labels: ["nvme", "ecc"],
        explanation: expect.stringContaining("8 cores (6 asked)"),
      },
    },
  });
  const { rows } = await pool.query(
    "SELECT expires_at - held_at = interval '15 minutes' AS quarter FROM reservation",
  );
  expect(rows).toEqual([{ quarter: true }]);
});

test("the choice stays as it was when the machine changes later", async () => {
  await machine(database().pool, { assetTag: "M-1", labels: ["nvme"] });
  const { id } = await reserved();
  await database().pool.query("UPDATE machine SET labels = '{changed}' WHERE asset_tag = 'M-1'");
  const { node } = await api.run(ReservationByIdDocument, { id });
  expect(node).toMatchObject({ __typename: "Reservation", state: "HELD" });
  const { rows } = await database().pool.query("SELECT choice->'labels' AS labels FROM reservation");
  expect(rows).toEqual([{ labels: ["nvme"] }]);
});

test("NothingAvailable: buy more, with the counts of every reason, and nothing is written (H02)", async () => {
  const { pool } = database();
  await machines(pool, 2, { site: "FRA" });
  await machine(pool, { site: "AMS", cpuCores: 2 });
  await machine(pool, { site: "AMS", status: "cleaning" });
  await hold(pool, await machine(pool, { site: "AMS" }));
  const result = await reserve(order(acme, { siteCode: "AMS", minCpuCores: 4 }));
  expect(result).toMatchObject({
    __typename: "NothingAvailable",
    nextAction: "BUY_MORE",
    retryAfterMs: null,
    considered: 5,
  });
  expect(result?.__typename === "NothingAvailable" && result.rejections).toEqual([
    { reason: "WRONG_SITE", kind: "FILTERED", machines: 2 },
    { reason: "TOO_FEW_CORES", kind: "FILTERED", machines: 1 },
    { reason: "NOT_READY", kind: "FILTERED", machines: 1 },
    { reason: "HELD", kind: "EXHAUSTED", machines: 1 },
  ]);
  expect((await reserve(order(acme, { siteCode: "XXX" })))?.__typename).toBe("NothingAvailable");
  const { rows } = await pool.query(
    "SELECT count(*)::integer AS n FROM reservation WHERE order_reference = 'order-1'",
  );
  expect(rows).toEqual([{ n: 0 }]);
});

test("a refusal is not stored: the same key tries afresh when there is something to sell", async () => {
  const variables = order(acme, {}, "again");
  expect((await reserve(variables))?.__typename).toBe("NothingAvailable");
  await machine(database().pool);
  expect((await reserve(variables))?.__typename).toBe("MachineReserved");
});

test("SomeoneWasFaster: the only machine is locked by somebody who has not decided yet", async () => {
  await machine(database().pool);
  const keeper = await database().connect();
  try {
    await keeper.query("BEGIN; SELECT FROM machine FOR UPDATE");
    expect(await reserve()).toMatchObject({
      __typename: "SomeoneWasFaster",
      nextAction: "RETRY",
      eligible: 1,
      skipped: 1,
      retryAfterMs: expect.any(Number),
    });
  } finally {
    await keeper.end();
  }
});

test("AlreadyReserved: the same key and arguments, whatever their order, for a hold and for what it became (H14)", async () => {
  await machines(database().pool, 3);
  const first = await reserved(order(acme, { labels: ["nvme"], minCpuCores: 4 }, "key"));
  const same = { minCpuCores: 4, labels: ["nvme", "nvme"], siteCode: null };
  expect(await reserve(order(acme, same, "key"))).toMatchObject({
    __typename: "AlreadyReserved",
    nextAction: "USE_EXISTING",
    retryAfterMs: null,
    reservation: { id: first.id, state: "HELD", expiresAt: first.expiresAt },
  });
  await convert(first.id);
  expect(await reserve(order(acme, same, "key"))).toMatchObject({
    __typename: "AlreadyReserved",
    reservation: { id: first.id, state: "CONVERTED" },
  });
});

test("IdempotencyKeyReused: other requirements or another order reference; another organization is not concerned", async () => {
  await machines(database().pool, 3);
  await reserved(order(acme, { minCpuCores: 4 }, "key"));
  expect(await reserve(order(acme, { minCpuCores: 5 }, "key"))).toMatchObject({
    __typename: "IdempotencyKeyReused",
    nextAction: "FIX_REQUEST",
    idempotencyKey: "key",
  });
  const other = order(acme, { minCpuCores: 4 }, "key");
  expect((await reserve({ input: { ...other.input, orderReference: "order-2" } }))?.__typename).toBe(
    "IdempotencyKeyReused",
  );
  expect((await reserve(order(globex, { minCpuCores: 5 }, "key")))?.__typename).toBe("MachineReserved");
});

test("ReservationExpired and ReservationCancelled: the key of one that is over starts nothing new", async () => {
  await machines(database().pool, 2);
  const one = await reserved(order(acme, {}, "one"));
  await lapse(one.id);
  expect(await reserve(order(acme, {}, "one"))).toMatchObject({
    __typename: "ReservationExpired",
    nextAction: "START_OVER",
    reservation: { id: one.id, state: "EXPIRED" },
  });
  const two = await reserved(order(acme, {}, "two"));
  await cancel(two.id);
  expect(await reserve(order(acme, {}, "two"))).toMatchObject({
    __typename: "ReservationCancelled",
    nextAction: "START_OVER",
    reservation: { id: two.id },
  });
});

test("HoldLimitReached: the organization's own limit, counted without lapsed holds; a limit of none asks for the operator", async () => {
  await machines(database().pool, 4);
  await database().pool.query("UPDATE organization SET hold_limit = 2 WHERE id = $1", [acme]);
  try {
    const first = await reserved();
    const second = await reserved();
    expect(await reserve()).toMatchObject({
      __typename: "HoldLimitReached",
      nextAction: "WAIT",
      limit: 2,
      held: [{ id: first.id }, { id: second.id }],
    });
    expect((await reserve(order(globex)))?.__typename).toBe("MachineReserved");
    await lapse(first.id);
    expect((await reserve())?.__typename).toBe("MachineReserved");
    await database().pool.query("UPDATE organization SET hold_limit = 0 WHERE id = $1", [acme]);
    await clear(database().pool);
    expect(await reserve()).toMatchObject({
      __typename: "HoldLimitReached",
      nextAction: "CONTACT_OPERATOR",
      retryAfterMs: null,
      held: [],
    });
  } finally {
    await database().pool.query("UPDATE organization SET hold_limit = NULL WHERE id = $1", [acme]);
  }
});

test("CoolingDown: configured, per organization, from the database's clock; a refused attempt does not push it out", async () => {
  await machines(database().pool, 4);
  const cooling = await startApi(database().url, { coolDownSeconds: 3600 });
  try {
    const attempt = async (organization: string) =>
      (await cooling.run(ReserveMachineDocument, order(organization))).reserveMachine;
    expect((await attempt(acme))?.__typename).toBe("MachineReserved");
    const first = await attempt(acme);
    const second = await attempt(acme);
    expect(first).toMatchObject({
      __typename: "CoolingDown",
      nextAction: "WAIT",
      retryAfterMs: expect.any(Number),
    });
    expect(second?.__typename === "CoolingDown" && second.retryAt).toBe(
      first?.__typename === "CoolingDown" && first.retryAt,
    );
    expect((await attempt(globex))?.__typename).toBe("MachineReserved");
    const { rows } = await database().pool.query(
      "SELECT held_at + interval '1 hour' AS at FROM reservation WHERE organization_id = $1",
      [acme],
    );
    expect(first?.__typename === "CoolingDown" && new Date(first.retryAt)).toEqual(
      (rows[0] as { at: Date }).at,
    );
  } finally {
    await cooling.close();
  }
});

test("ModuleDisabled: closed for new work, for tenants' and storefronts' conversion and extension, in every form of request", async () => {
  await machines(database().pool, 5);
  const held = await reserved();
  const paid = await reserved();
  const unwanted = await reserved();
  await switchSet(database().pool, "datacenter", false);
  const storefront = await api.token("storefront");
  const own = order(acme);
  expect(await reserve(own)).toMatchObject({
    __typename: "ModuleDisabled",
    module: "DATACENTER",
    nextAction: "CONTACT_OPERATOR",
    retryAfterMs: null,
  });
  for (const secret of [storefront, tenant]) {
    expect((await reserve(order(acme), secret))?.__typename).toBe("ModuleDisabled");
    expect((await convert(held.id, secret))?.__typename).toBe("ModuleDisabled");
    expect((await extend(held.id, secret))?.__typename).toBe("ModuleDisabled");
    const raw = await api.send(
      `mutation { a: reserveMachine(input: {orderReference: "o", idempotencyKey: "${randomUUID()}", requirements: {}, organizationId: "${own.input.organizationId}"}) { __typename }
                  b: reserveMachine(input: {orderReference: "o", idempotencyKey: "${randomUUID()}", requirements: {}, organizationId: "${own.input.organizationId}"}) { ...F } }
       fragment F on ReserveMachineResult { __typename }`,
      undefined,
      secret,
    );
    expect(raw.data).toEqual({ a: { __typename: "ModuleDisabled" }, b: { __typename: "ModuleDisabled" } });
  }
  // An operator may honour a paid order, and ending things always works.
  expect((await extend(paid.id))?.__typename).toBe("ReservationExtended");
  const converted = await convert(paid.id);
  expect(converted?.__typename).toBe("ReservationConverted");
  expect((await cancel(unwanted.id))?.__typename).toBe("ReservationReleased");
  if (converted?.__typename === "ReservationConverted") {
    expect((await release(converted.binding.id))?.__typename).toBe("BindingReleased");
  }
  expect(await breaches(database().pool)).toEqual([]);
});

test("an override opens a closed module for one organization, and closes an open one", async () => {
  await machines(database().pool, 2);
  const { pool } = database();
  await pool.query(
    "INSERT INTO feature_override (organization_id, module, enabled) VALUES ($1, 'datacenter', true), ($2, 'datacenter', false)",
    [acme, globex],
  );
  await switchSet(pool, "datacenter", false);
  expect((await reserve(order(acme)))?.__typename).toBe("MachineReserved");
  await switchSet(pool, "datacenter", true);
  expect((await reserve(order(globex)))?.__typename).toBe("ModuleDisabled");
});

test("conversion: the hold becomes a binding; a second conversion is told of it (H05)", async () => {
  await machine(database().pool, { assetTag: "M-9" });
  const { id } = await reserved();
  const first = await convert(id);
  expect(first).toMatchObject({
    __typename: "ReservationConverted",
    reservation: {
      id,
      state: "CONVERTED",
      settledAt: expect.any(String),
      binding: { id: expect.any(String) },
    },
    binding: {
      serviceReference: "svc-1",
      releasedAt: null,
      machine: { assetTag: "M-9" },
      reservation: { id },
    },
  });
  const again = await convert(id);
  expect(again).toMatchObject({ __typename: "AlreadyConverted", nextAction: "USE_EXISTING" });
  expect(again?.__typename === "AlreadyConverted" && again.binding.id).toBe(
    first?.__typename === "ReservationConverted" && first.binding.id,
  );
  expect((await cancel(id))?.__typename).toBe("AlreadyConverted");
  expect((await extend(id))?.__typename).toBe("AlreadyConverted");
});

test("an expired hold that nobody swept is not convertible, extendable or cancellable, and its machine is sold to the next caller (H04)", async () => {
  await machine(database().pool, { assetTag: "M-1" });
  const lost = await reserved();
  await lapse(lost.id);
  const { machines: list } = await api.run(MachinesDocument, {});
  expect(list.edges[0]?.node).toMatchObject({ availability: "FREE", reservation: null });
  expect((await api.run(ReservationByIdDocument, { id: lost.id })).node).toMatchObject({
    state: "EXPIRED",
    settledAt: expect.any(String),
  });
  for (const act of [convert, extend, cancel]) {
    expect(await act(lost.id)).toMatchObject({
      __typename: "ReservationExpired",
      nextAction: "START_OVER",
      reservation: { id: lost.id, state: "EXPIRED" },
    });
  }
  const next = await reserved(order(globex));
  expect(next.machine.assetTag).toBe("M-1");
  expect((await convert(lost.id))?.__typename).toBe("ReservationExpired");
  const { rows } = await database().pool.query(
    "SELECT state, settled_at = expires_at AS at_deadline FROM reservation ORDER BY held_at",
  );
  expect(rows).toEqual([
    { state: "expired", at_deadline: true },
    { state: "held", at_deadline: null },
  ]);
  expect((await convert(next.id))?.__typename).toBe("ReservationConverted");
});

test("truly free machines are sold before those of lapsed holds, even when these fit better", async () => {
  const { pool } = database();
  await hold(pool, await machine(pool, { assetTag: "LAPSED", cpuCores: 4 }), { endsIn: -5 });
  await machine(pool, { assetTag: "FREE", cpuCores: 8 });
  expect((await reserved()).machine.assetTag).toBe("FREE");
  expect((await reserved()).machine.assetTag).toBe("LAPSED");
});

test("ReservationExtended once, then ExtensionLimitReached; nothing else moves the deadline", async () => {
  await machine(database().pool);
  const held = await reserved();
  const extended = await extend(held.id);
  expect(extended?.__typename).toBe("ReservationExtended");
  const until = extended?.__typename === "ReservationExtended" ? extended.reservation.expiresAt : "";
  expect(Date.parse(until) - Date.parse(held.expiresAt)).toBe(900_000);
  expect(await extend(held.id)).toMatchObject({
    __typename: "ExtensionLimitReached",
    reservation: { expiresAt: until },
  });
  expect((await reserve(order(acme, {}, held.idempotencyKey)))?.__typename).toBe("AlreadyReserved");
  expect((await api.run(ReservationByIdDocument, { id: held.id })).node).toMatchObject({ expiresAt: until });
});

test("ReservationReleased: the machine is for sale at once; a second cancel is told, and the successor is untouched (H06)", async () => {
  await machine(database().pool, { assetTag: "M-1" });
  const first = await reserved();
  expect(await cancel(first.id, "changed my mind")).toMatchObject({
    __typename: "ReservationReleased",
    reservation: { state: "CANCELLED", cancellationReason: "changed my mind" },
  });
  const next = await reserved(order(globex));
  expect(await cancel(first.id)).toMatchObject({
    __typename: "ReservationCancelled",
    reservation: { cancellationReason: "changed my mind" },
  });
  expect((await convert(first.id))?.__typename).toBe("ReservationCancelled");
  expect((await extend(first.id))?.__typename).toBe("ReservationCancelled");
  expect((await api.run(ReservationByIdDocument, { id: next.id })).node).toMatchObject({ state: "HELD" });
});

test("ReservationNotFound and BindingNotFound: nothing there, or none of the caller's business", async () => {
  await machine(database().pool);
  const foreign = await reserved(order(globex));
  const unknown = reservationGid(randomUUID());
  for (const id of [unknown, foreign.id]) {
    const messages = [
      await convert(id, tenant),
      (await api.run(CancelReservationDocument, { input: { reservationId: id } }, tenant)).cancelReservation,
      await extend(id, tenant),
    ];
    for (const result of messages)
      expect(result).toMatchObject({ __typename: "ReservationNotFound", nextAction: "FIX_REQUEST" });
  }
  const binding = await convert(foreign.id);
  const bindingId = binding?.__typename === "ReservationConverted" ? binding.binding.id : "";
  for (const id of [globalIdEncode("ServiceBinding", randomUUID()), bindingId]) {
    const { releaseBinding } = await api.run(ReleaseBindingDocument, { input: { bindingId: id } }, tenant);
    expect(releaseBinding).toMatchObject({ __typename: "BindingNotFound", nextAction: "FIX_REQUEST" });
  }
});

test("BindingReleased: the machine is in CLEANING and not for sale until an operator sets it READY (H07)", async () => {
  await machine(database().pool);
  const { id } = await reserved();
  const converted = await convert(id);
  const bindingId = converted?.__typename === "ReservationConverted" ? converted.binding.id : "";
  const released = await release(bindingId);
  expect(released).toMatchObject({
    __typename: "BindingReleased",
    binding: { releasedAt: expect.any(String) },
    machine: { status: "CLEANING", availability: "NOT_READY" },
  });
  expect(await release(bindingId)).toMatchObject({
    __typename: "AlreadyReleased",
    binding: { id: bindingId },
  });
  expect(await reserve()).toMatchObject({
    __typename: "NothingAvailable",
    rejections: [{ reason: "NOT_READY", machines: 1 }],
  });
  const machineId = released?.__typename === "BindingReleased" ? released.machine.id : "";
  await api.run(SetMachineStatusDocument, { input: { machineId, status: "READY" } });
  const successor = await reserved(order(globex));
  expect((await release(bindingId))?.__typename).toBe("AlreadyReleased");
  expect((await api.run(ReservationByIdDocument, { id: successor.id })).node).toMatchObject({
    state: "HELD",
  });
});

test("reservations: newest first, by state as it is now, and a tenant sees its own", async () => {
  await machines(database().pool, 4);
  const one = await reserved();
  const two = await reserved();
  const foreign = await reserved(order(globex));
  await lapse(one.id);
  const ids = async (variables: object, secret?: string) =>
    (await api.run(ReservationsDocument, variables, secret)).reservations.edges.map((edge) => edge.node.id);
  expect(await ids({})).toEqual([foreign.id, two.id, one.id]);
  expect(await ids({ state: "EXPIRED" })).toEqual([one.id]);
  expect(await ids({ state: "HELD" })).toEqual([foreign.id, two.id]);
  expect(await ids({}, tenant)).toEqual([two.id, one.id]);
  expect(await ids({ organizationId: globalIdEncode("Organization", globex) })).toEqual([foreign.id]);
});

test("a tenant needs no organizationId, and may not name another one", async () => {
  await machine(database().pool);
  const { organizationId: _, ...input } = order(acme).input;
  expect((await reserve({ input } as ReturnType<typeof order>, tenant))?.__typename).toBe("MachineReserved");
  const answer = await api.send(
    "mutation ($input: ReserveMachineInput!) { reserveMachine(input: $input) { __typename } }",
    order(globex),
    tenant,
  );
  expect(answer.errors?.[0]?.extensions).toMatchObject({
    code: "BAD_USER_INPUT",
    field: "input.organizationId",
  });
});
