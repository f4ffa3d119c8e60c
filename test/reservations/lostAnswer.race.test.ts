import { afterAll, beforeAll, beforeEach, expect, test } from "vitest";
import { startApi, type TestApi } from "../support/api.ts";
import { waitUntil } from "../support/barrier.ts";
import { useTestDatabase } from "../support/database.ts";
import { ReserveMachineDocument } from "../support/operations.ts";
import { type Wire, wireOpen } from "../support/wire.ts";
import { breaches, clear, machines, order, organizations, switchSet } from "../support/world.ts";

// The database commits, and its answer is late or lost (H12). A reservation is one statement, so there is
// no COMMIT of its own to wait for: what is held back here is the answer to all of it.

const database = useTestDatabase();
let wire: Wire;
let api: TestApi;
let orgs: string[];

beforeAll(async () => {
  wire = await wireOpen(database().url);
  api = await startApi(wire.url, { poolSize: 4 }, true);
  await switchSet(database().pool, "datacenter", true);
  orgs = await organizations(database().pool, 40);
});
afterAll(async () => {
  await api.close();
  await wire.close();
});
beforeEach(() => clear(database().pool));

async function holds(): Promise<number> {
  const { rows } = await database().pool.query<{ holds: number }>(
    "SELECT count(*)::integer AS holds FROM reservation WHERE state = 'held'",
  );
  return rows[0]?.holds ?? 0;
}

function poolIsWhole(): void {
  const { pool } = api.database;
  expect(pool.waitingCount).toBe(0);
  expect(pool.idleCount).toBe(pool.totalCount);
  expect(pool.totalCount).toBeLessThanOrEqual(4);
}

test("40 callers, a pool of 4, and answers that stay away until every machine is committed: each is told the truth, and the pool is whole", async () => {
  await machines(database().pool, 2);
  wire.holdAnswersTo("reserve_machine");
  const answers = Promise.all(
    orgs.map((organization) => api.run(ReserveMachineDocument, order(organization))),
  );
  await waitUntil(async () => (await holds()) === 2, "both machines are sold, and nobody knows it");
  wire.deliver();
  const kinds = (await answers).map(({ reserveMachine }) => reserveMachine?.__typename);
  expect(kinds.filter((kind) => kind === "MachineReserved")).toHaveLength(2);
  expect(kinds.filter((kind) => kind === "SomeoneWasFaster" || kind === "NothingAvailable")).toHaveLength(38);
  poolIsWhole();
  expect(await breaches(database().pool)).toEqual([]);
});

test("the connection breaks after the commit: the caller gets an error, its key finds the hold, and the process serves on", async () => {
  await machines(database().pool, 3);
  const variables = order(orgs[0] as string);
  wire.holdAnswersTo("reserve_machine");
  const lost = api.send(
    "mutation ($input: ReserveMachineInput!) { reserveMachine(input: $input) { __typename } }",
    variables,
  );
  await waitUntil(
    async () => (await holds()) === 1,
    "the order is committed, and its caller does not know it",
  );
  wire.cut();
  const { data, errors } = await lost;
  expect(data).toEqual({ reserveMachine: null });
  expect(errors?.[0]?.extensions?.["code"]).toBe("INTERNAL_SERVER_ERROR");
  const { reserveMachine } = await api.run(ReserveMachineDocument, variables);
  expect(reserveMachine?.__typename).toBe("AlreadyReserved");
  expect(await holds()).toBe(1);
  poolIsWhole();
  expect(await breaches(database().pool)).toEqual([]);
});
