import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { databaseOpen } from "../../src/database/client.ts";
import { logOpen } from "../../src/logging.ts";
import { sweep } from "../../src/workers/sweeper.ts";
import { startApi, type TestApi } from "../support/api.ts";
import { useTestDatabase } from "../support/database.ts";
import {
  CancelReservationDocument,
  ConvertReservationDocument,
  ExtendReservationDocument,
  MachinesDocument,
  ReserveMachineDocument,
} from "../support/operations.ts";
import { type Pooler, pgbouncerInstalled, pgbouncerStart } from "../support/pgbouncer.ts";
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

// The main job behind a PgBouncer in transaction mode with two server connections (H13). The whole suite
// runs behind one with TEST_PGBOUNCER=1.

const installed = pgbouncerInstalled();
test.skipIf(installed)("behind PgBouncer", (context) => {
  context.skip("pgbouncer is not installed on this machine");
});

describe.runIf(installed)("behind PgBouncer in transaction mode, pool 2", () => {
  const database = useTestDatabase();
  let pooler: Pooler;
  const apis: TestApi[] = [];
  let orgs: string[];

  beforeAll(async () => {
    pooler = await pgbouncerStart(database().url);
    for (let index = 0; index < 2; index++) {
      apis.push(
        await startApi(pooler.through(database().url), {
          namedStatements: false,
          listenDatabaseUrl: database().url,
        }),
      );
    }
    await switchSet(database().pool, "datacenter", true);
    orgs = await organizations(database().pool, 30);
  });
  afterAll(async () => {
    for (const api of apis) await api.close();
    await pooler.stop();
  });
  beforeEach(() => clear(database().pool));

  const api = (at: number) => apis[at % apis.length] as TestApi;

  test("30 orders on 10 machines: 10 reservations, converted, extended and cancelled side by side, and the sweeper among them", async () => {
    const { pool } = database();
    await machines(pool, 10);
    for (const id of await machines(pool, 5, { status: "ready", cpuCores: 1 })) {
      await hold(pool, id, { endsIn: -5 });
    }
    const worker = databaseOpen(pooler.through(database().url), {
      poolSize: 2,
      namedStatements: false,
      onError: () => undefined,
    });
    try {
      const [results] = await Promise.all([
        Promise.all(
          orgs.map(async (organization, index) => {
            const answer = await api(index).run(
              ReserveMachineDocument,
              order(organization, { minCpuCores: 8 }),
            );
            return answer.reserveMachine;
          }),
        ),
        sweep(worker.db, logOpen("silent")),
      ]);
      const won = results.flatMap((result) =>
        result?.__typename === "MachineReserved" ? [result.reservation.id] : [],
      );
      expect(won).toHaveLength(10);
      const refused = results.flatMap((result) =>
        result?.__typename === "SomeoneWasFaster" || result?.__typename === "NothingAvailable"
          ? [result]
          : [],
      );
      expect(refused).toHaveLength(20);
      const ends = await Promise.all(
        won.map(async (reservationId, index) => {
          const input = { reservationId };
          if (index % 3 === 0) {
            const { convertReservation } = await api(index).run(ConvertReservationDocument, {
              input: { ...input, serviceReference: "svc" },
            });
            return convertReservation?.__typename;
          }
          if (index % 3 === 1) {
            return (await api(index).run(ExtendReservationDocument, { input })).extendReservation?.__typename;
          }
          return (await api(index).run(CancelReservationDocument, { input })).cancelReservation?.__typename;
        }),
      );
      expect([...ends].sort()).toEqual([
        ...Array(4).fill("ReservationConverted"),
        ...Array(3).fill("ReservationExtended"),
        ...Array(3).fill("ReservationReleased"),
      ]);
      expect((await api(0).run(MachinesDocument, { first: 50 })).machines.totalCount).toBe(15);
      expect(await breaches(pool)).toEqual([]);
    } finally {
      await worker.close();
    }
  });

  test("a constraint lost in the middle of a request leaves the next client of the connection healthy", async () => {
    const { pool } = database();
    const id = await machine(pool);
    const keeper = await database().connect();
    try {
      await keeper.query("BEGIN");
      await hold(keeper, id, { organization: orgs[0] as string });
      const answers = Promise.all(
        Array.from({ length: 8 }, (_, index) =>
          api(index).run(ReserveMachineDocument, order(orgs[index + 1] as string)),
        ),
      );
      const kinds = (await answers).map(({ reserveMachine }) => reserveMachine?.__typename);
      expect(new Set(kinds)).toEqual(new Set(["SomeoneWasFaster"]));
      await keeper.query("COMMIT");
    } finally {
      await keeper.end();
    }
    const { reserveMachine } = await api(0).run(ReserveMachineDocument, order(orgs[10] as string));
    expect(reserveMachine?.__typename).toBe("NothingAvailable");
    expect(await breaches(pool)).toEqual([]);
  });

  test("nothing is left on the shared connections: default settings, no advisory lock, no prepared statement", async () => {
    const { pool } = database();
    await machines(pool, 2);
    await Promise.all(orgs.map((organization) => api(0).run(ReserveMachineDocument, order(organization))));
    const settings = `SELECT name, setting FROM pg_settings
      WHERE name IN ('statement_timeout', 'lock_timeout', 'search_path', 'plan_cache_mode', 'enable_seqscan', 'jit', 'session_replication_role')
      ORDER BY name`;
    const fresh = await database().connect();
    const expected = (await fresh.query(settings)).rows;
    await fresh.end();
    // More clients at once than the pooler has server connections, so that each of those is looked at.
    const seen = await Promise.all(Array.from({ length: 10 }, () => apis[0]?.database.pool.query(settings)));
    for (const answer of seen) expect(answer?.rows).toEqual(expected);
    const left = await Promise.all(
      Array.from({ length: 10 }, () =>
        apis[0]?.database.pool.query(
          "SELECT (SELECT count(*)::integer FROM pg_prepared_statements WHERE name <> '') AS prepared, (SELECT count(*)::integer FROM pg_listening_channels()) AS listening",
        ),
      ),
    );
    for (const answer of left) expect(answer?.rows).toEqual([{ prepared: 0, listening: 0 }]);
    const { rows } = await pool.query(
      "SELECT count(*)::integer AS locks FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())",
    );
    expect(rows).toEqual([{ locks: 0 }]);
  });
});
