// Measures what a reservation costs, beside the same work without a framework and without a service.
// How to run and to read it: docs/benchmark.md.
import { randomBytes } from "node:crypto";
import { mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { arch, availableParallelism, cpus, platform, tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import pg from "pg";
import { embeddedOpen } from "../src/database/embedded.ts";
import { migrate } from "../src/database/migrate.ts";
import {
  ANY_MACHINE,
  datasetConnect,
  datasetCreate,
  datasetFreeAll,
  datasetGrow,
  datasetHoldAllBut,
  ORDER_REFERENCE,
  organizationId,
  sliceTakeBack,
} from "./dataset.ts";
import { floorMissing, floorRun } from "./floor.ts";
import type { LoadJob, LoadResult } from "./load.ts";
import { type Load, loadStart, type Service, serviceStart } from "./processes.ts";
import { racksMeasure } from "./racks.ts";
import {
  type Cell,
  CONTENDERS,
  type Contender,
  CRITERION,
  cellsText,
  type Growth,
  growthText,
  quantile,
  type Turn,
  verdicts,
  verdictsText,
} from "./report.ts";

const USAGE = `Usage: npm run bench -- [options]

  --quick              1k and 10k machines, 8 and 32 connections, short turns: about two minutes
  --sizes LIST         machines, ascending               (default 1000,10000,100000)
  --connections LIST   connections of the load generator (default 1,8,32,100)
  --rounds N           turns of every contender          (default 5)
  --seconds N          measured seconds of each turn     (default 1.5)
  --warmup N           seconds that warm up each service (default 15)
  --pool N             database connections of each service (default 10)
  --racks              only the plans of the questions about a site with many racks
  --no-growth          leave out what a reservation costs as the inventory grows

BENCH_DATABASE_URL names a PostgreSQL to create and drop a database in; by default a server is started
in a temporary directory.`;

interface Options {
  readonly sizes: readonly number[];
  readonly connections: readonly number[];
  readonly rounds: number;
  readonly seconds: number;
  readonly warmup: number;
  readonly pool: number;
  readonly growth: boolean;
  /** Only the plans of the rack questions. */
  readonly racks: boolean;
}

/** A slice sells this share of what is free at the most, so that no order meets an empty shelf. */
const SLICE_SHARE = 0.6;
/** What the smallest inventory needs, so that 100 connections have more than a handful of orders each. */
const SMALLEST = 500;
/** Orders for each second of warming up, and how many times the seconds it may take to answer them. */
const WARM_UP_ORDERS = 400;
const WARM_UP_AT_MOST = 4;
/** Share that is free on the nearly empty shelf. */
const SCARCE = 0.001;
/** Small slices between two VACUUMs. */
const VACUUM_EVERY = 50;
let runs = 0;

/** Aborted by Ctrl-C. */
const interrupted = new AbortController();

class UsageError extends Error {}

try {
  const options = optionsRead(process.argv.slice(2));
  if (options === null) process.stdout.write(`${USAGE}\n`);
  else process.exitCode = (await bench(options)) ? 0 : 1;
} catch (error) {
  if (interrupted.signal.aborted) {
    process.stderr.write("Interrupted; everything is cleaned up.\n");
    process.exitCode = 130;
  } else if (error instanceof UsageError) {
    process.stderr.write(`${error.message}\n\n${USAGE}\n`);
    process.exitCode = 2;
  } else {
    process.stderr.write(`${error instanceof Error ? error.stack : String(error)}\n`);
    process.exitCode = 1;
  }
}

/** Everything that a turn needs. */
interface Bench {
  readonly options: Options;
  readonly url: string;
  readonly secret: string;
  readonly directory: string;
  readonly database: pg.Client;
  readonly load: Load;
  readonly services: Readonly<Record<Exclude<Contender, "floor">, Service>>;
  readonly contenders: readonly Contender[];
}

/** @returns whether the criterion is met. */
async function bench(options: Options): Promise<boolean> {
  const startedAt = new Date();
  for (const signal of ["SIGINT", "SIGTERM"] as const) process.once(signal, () => interrupted.abort());
  await using ends = new AsyncDisposableStack();

  const directory = await mkdtemp(join(tmpdir(), "holdfast-bench-"));
  ends.defer(() => rm(directory, { recursive: true, force: true }));
  const missing = await floorMissing();
  if (missing !== null) say(missing);
  const url = await databaseMake(ends, directory);
  await migrate(url);
  if (options.racks) {
    print(await racksMeasure(url));
    return true;
  }
  const database = await datasetConnect(url);
  ends.defer(() => database.end());
  const secret = `holdfast_${randomBytes(32).toString("base64url")}`;
  await datasetCreate(database, secret);
  await datasetGrow(database, options.sizes[0] ?? SMALLEST);
  interrupted.signal.throwIfAborted();

  const start = async (args: string[], env: Record<string, string>) => {
    const service = await serviceStart(args, { DATABASE_URL: url, ...env });
    ends.defer(() => service.stop());
    return service;
  };
  const pool = String(options.pool);
  const services = {
    product: await start(["src/main.ts"], {
      PORT: "0",
      HOST: "127.0.0.1",
      DATABASE_POOL_SIZE: pool,
      HOLDFAST_MIGRATE: "0",
      HOLDFAST_SWEEP_SECONDS: "0",
      HOLDFAST_HOLD_LIMIT: "100000",
      HOLDFAST_LOG_LEVEL: "warn",
    }),
    rest: await start(["bench/rest.ts"], { POOL_SIZE: pool }),
    "rest-function": await start(["bench/rest.ts", "--mode", "function"], { POOL_SIZE: pool }),
  };
  const load = loadStart();
  ends.defer(() => load.stop());
  interrupted.signal.addEventListener("abort", () => void load.stop());

  const all: Bench = {
    options,
    url,
    secret,
    directory,
    database,
    load,
    services,
    contenders: CONTENDERS.filter((contender) => contender !== "floor" || missing === null),
  };
  const { rows } = await database.query<Record<string, string>>(
    `SELECT current_setting('server_version') AS version, current_setting('fsync') AS fsync,
            current_setting('synchronous_commit') AS synchronous_commit`,
  );
  const environment = {
    node: process.version,
    postgresql: rows[0],
    processors: availableParallelism(),
    processor: cpus()[0]?.model ?? "unknown",
    system: `${platform()} ${arch()}`,
  };
  say(
    `Node ${environment.node}, PostgreSQL ${rows[0]?.["version"]} (fsync ${rows[0]?.["fsync"]}, synchronous_commit ${rows[0]?.["synchronous_commit"]}), ` +
      `${environment.processors} × ${environment.processor}. They are shared by the database, the service and the load generator: ` +
      "compare within a run, and take the ratios with you, not the rates.",
  );

  await warmUp(all);
  const cells: Cell[] = [];
  const growth: Growth[] = [];
  for (const machines of options.sizes) {
    await datasetGrow(database, machines);
    for (const connections of options.connections) {
      const cell = await cellMeasure(all, machines, connections);
      cells.push(cell);
      say(`\n${cellsText([cell])}`);
    }
    if (options.growth) growth.push(...(await growthMeasure(all, machines)));
  }

  const found = verdicts(cells);
  const met = found.every((verdict) => verdict.met);
  const results = new URL("results/", import.meta.url);
  const path = new URL(`${startedAt.toISOString().replaceAll(":", "-")}.json`, results);
  await mkdir(results, { recursive: true });
  await writeFile(
    path,
    `${JSON.stringify({ startedAt, options, environment, cells, growth, criterion: CRITERION, verdicts: found }, null, 2)}\n`,
  );

  print(
    `\nReservations, medians of ${options.rounds} rounds of ${options.seconds} s; "product / it" is the median of the rounds' ratios (min..max)\n`,
  );
  print(cellsText(cells));
  if (growth.length > 0) {
    print("\nWhat one reservation costs the product as the inventory grows (any site, the smallest size)\n");
    print(growthText(growth));
  }
  print("\nThe questions about a site with many racks, and their plans\n");
  print(await racksMeasure(url));
  print(`\n${verdictsText(found)}`);
  print(
    found.length === 0
      ? `The criterion was not measured: it is about ${CRITERION.connections.join(" and ")} connections.`
      : met
        ? `The criterion is met: at least ${CRITERION.ratio} of the hand-written service.`
        : `The criterion is MISSED: less than ${CRITERION.ratio} of the hand-written service.`,
  );
  print(`\nResults: ${fileURLToPath(path)}`);
  return met;
}

/** A database that is thrown away afterwards, with the durability that PostgreSQL has by default. */
async function databaseMake(ends: AsyncDisposableStack, directory: string): Promise<string> {
  let server = process.env["BENCH_DATABASE_URL"] ?? "";
  if (server === "") {
    const embedded = await embeddedOpen({
      dataDir: join(directory, "database"),
      exclusive: true,
      persistent: false,
      settings: { max_connections: "250" },
    });
    ends.defer(() => embedded.stop());
    server = embedded.url;
  }
  const name = `holdfast_bench_${randomBytes(6).toString("hex")}`;
  const run = async (sql: string) => {
    const client = new pg.Client({ connectionString: server });
    await client.connect();
    await client.query(sql).finally(() => client.end());
  };
  await run(`CREATE DATABASE ${name}`);
  ends.defer(() => run(`DROP DATABASE IF EXISTS ${name} WITH (FORCE)`));
  const url = new URL(server);
  url.pathname = `/${name}`;
  return url.href;
}

/**
 * Until a service has answered for so many seconds and so many orders: on a busy computer the seconds
 * alone would leave it uncompiled, and the one with more code of its own would be measured cold.
 */
async function warmUp(all: Bench): Promise<void> {
  const { warmup, sizes } = all.options;
  for (const contender of all.contenders) {
    if (contender === "floor") continue;
    say(`Warming up ${contender} for ${warmup} s`);
    const until = performance.now() + warmup * WARM_UP_AT_MOST * 1000;
    for (let seconds = 0, orders = 0; seconds < warmup || orders < warmup * WARM_UP_ORDERS; seconds++) {
      orders += (await turn(all, contender, 16, sizes[0] ?? SMALLEST, 1)).reservations;
      if (performance.now() > until) break;
    }
  }
}

/** Every contender in turn, round after round. */
async function cellMeasure(all: Bench, machines: number, connections: number): Promise<Cell> {
  const turns: Partial<Record<Contender, Turn[]>> = {};
  for (let round = 0; round < all.options.rounds; round++) {
    for (const contender of all.contenders) {
      turns[contender] ??= [];
      turns[contender].push(await turn(all, contender, connections, machines, all.options.seconds));
    }
  }
  return { machines, connections, turns };
}

/** Reserves in slices, with the shelf filled again between them, until they add up to so many seconds. */
async function turn(
  all: Bench,
  contender: Contender,
  connections: number,
  machines: number,
  seconds: number,
): Promise<Turn> {
  const shelf = Math.floor(machines * SLICE_SHARE);
  const tally = tallyOf();
  while (tally.seconds < seconds) {
    interrupted.signal.throwIfAborted();
    const left = seconds - tally.seconds;
    if (contender === "floor") {
      // pgbench counts transactions, so the first slice guesses how many fit into the time.
      const rate = tally.answered === 0 ? 500 : tally.answered / tally.seconds;
      const orders = Math.min(shelf, Math.max(connections * 8, Math.ceil(rate * left)));
      const slice = await floorRun(
        all.url,
        all.secret,
        connections,
        orders,
        runName(),
        all.directory,
        interrupted.signal,
      );
      await takenBack(all, slice.answered + slice.ramped, true);
      tally.add({ ...slice, someoneWasFaster: 0, processorSeconds: null });
    } else {
      // Every pooled connection answers a few orders before the clock starts.
      const ramp = Math.min(Math.max(connections, all.options.pool) * 3, Math.floor(shelf / 3));
      const job = jobOf(all, contender, connections, {
        ramp,
        orders: shelf - ramp,
        seconds: left,
        wanted: "storefront",
      });
      const slice = await sent(all, contender, job);
      await takenBack(all, slice.answered + slice.ramped, true);
      tally.add(slice);
    }
  }
  return tally.turn();
}

/** What a reservation costs with all machines free, and with the last of a thousand. */
async function growthMeasure(all: Bench, machines: number): Promise<Growth[]> {
  const { database, options } = all;
  say(`\nWhat a reservation costs on ${machines} machines`);
  // As many as are free at the end of a slice still stand in the smallest group of equal fit.
  const full = Math.floor(machines / 10);
  const lines: Growth[] = [
    {
      machines,
      shelf: "all free",
      free: machines,
      one: await scarceTurn(all, 1, full, options.seconds),
      eight: await scarceTurn(all, 8, full, options.seconds),
      sql: await sqlMeasure(all, full, options.seconds),
      refusal: null,
    },
  ];
  const free = Math.max(1, Math.round(machines * SCARCE));
  const some = Math.max(1, Math.floor(free * SLICE_SHARE));
  await datasetHoldAllBut(database, free);
  const scarce = {
    machines,
    shelf: "99.9 % held" as const,
    free,
    one: await scarceTurn(all, 1, some, options.seconds),
    eight: free >= 50 ? await scarceTurn(all, 8, some, options.seconds) : null,
    sql: await sqlMeasure(all, some, options.seconds),
  };
  await datasetHoldAllBut(database, 0);
  const refused = await sent(
    all,
    "product",
    jobOf(all, "product", 1, {
      ramp: 2,
      orders: 15,
      seconds: options.seconds,
      wanted: "anything",
      expect: "NothingAvailable",
    }),
  );
  await datasetFreeAll(database);
  return [...lines, { ...scarce, refusal: quantile(refused.latencies, 0.5) }];
}

/** The product alone, on a shelf on which only `orders` may be sold between two fillings. */
async function scarceTurn(all: Bench, connections: number, orders: number, seconds: number): Promise<Turn> {
  const tally = tallyOf();
  // The pool's connections were planned for another distribution; one slice is not counted.
  for (let slices = 0; growthGoesOn(tally, slices, seconds); slices++) {
    interrupted.signal.throwIfAborted();
    const slice = await sent(
      all,
      "product",
      jobOf(all, "product", connections, {
        ramp: 0,
        orders,
        seconds,
        wanted: "anything",
      }),
    );
    await takenBack(all, slice.answered, slices % VACUUM_EVERY === VACUUM_EVERY - 1);
    if (slices >= 3) tally.add(slice);
  }
  return tally.turn();
}

function growthGoesOn(tally: Tally, slices: number, seconds: number): boolean {
  return tally.answered < 20 || (tally.seconds < seconds && slices < 100);
}

/** reserve_machine() over one connection: what the database does, and one round trip. */
async function sqlMeasure(
  all: Bench,
  orders: number,
  seconds: number,
): Promise<{ p50: number; p99: number }> {
  const client = new pg.Client({ connectionString: all.url });
  await client.connect();
  try {
    const tally = tallyOf();
    const requirements = JSON.stringify({
      min_cpu_cores: ANY_MACHINE.minCpuCores,
      min_memory_gib: ANY_MACHINE.minMemoryGib,
      min_storage_gib: ANY_MACHINE.minStorageGib,
    });
    for (let slices = 0; growthGoesOn(tally, slices, seconds); slices++) {
      interrupted.signal.throwIfAborted();
      const run = runName();
      const latencies: number[] = [];
      for (let order = 0; order < Math.min(orders, 500); order++) {
        const before = performance.now();
        const { rows } = await client.query<{ outcome: string }>({
          name: "reserve",
          text: "SELECT outcome FROM reserve_machine($1, $2, $3, $4, 900, 100000, 0)",
          values: [organizationId(order), ORDER_REFERENCE, `${run}-${order}`, requirements],
        });
        latencies.push(performance.now() - before);
        if (rows[0]?.outcome !== "reserved") throw new Error(`reserve_machine: ${rows[0]?.outcome}`);
      }
      await takenBack(all, latencies.length, slices % VACUUM_EVERY === VACUUM_EVERY - 1);
      if (slices < 3) continue;
      const total = latencies.reduce((sum, value) => sum + value, 0) / 1000;
      tally.add({
        answered: latencies.length,
        someoneWasFaster: 0,
        seconds: total,
        latencies,
        processorSeconds: null,
      });
    }
    return tally.turn();
  } finally {
    await client.end();
  }
}

/** @throws Error with the service's own words when an answer is not as expected. */
async function sent(all: Bench, contender: Exclude<Contender, "floor">, job: LoadJob): Promise<LoadResult> {
  try {
    return await all.load.run(job);
  } catch (error) {
    throw new Error(`${contender}: ${(error as Error).message}\n${all.services[contender].said()}`);
  }
}

/** Fills the shelf again, and compares what was answered with what stands in the database. */
async function takenBack(all: Bench, answered: number, vacuum: boolean): Promise<void> {
  const stood = await sliceTakeBack(all.database, vacuum);
  if (stood !== answered) throw new Error(`${answered} reservations were answered, and ${stood} were made`);
}

function jobOf(
  all: Bench,
  contender: Exclude<Contender, "floor">,
  connections: number,
  job: Pick<LoadJob, "ramp" | "orders" | "seconds" | "wanted"> & Partial<Pick<LoadJob, "expect">>,
): LoadJob {
  return {
    api: contender === "product" ? "graphql" : "rest",
    url: all.services[contender].url,
    secret: all.secret,
    connections,
    run: runName(),
    expect: "MachineReserved",
    ...job,
  };
}

function runName(): string {
  runs += 1;
  return `run${runs}`;
}

interface Slice {
  readonly answered: number;
  readonly someoneWasFaster: number;
  readonly seconds: number;
  readonly latencies: readonly number[];
  readonly processorSeconds: number | null;
}

interface Tally {
  readonly answered: number;
  readonly seconds: number;
  add(slice: Slice): void;
  turn(): Turn;
}

function tallyOf(): Tally {
  let seconds = 0;
  let someoneWasFaster = 0;
  let processor: number | null = 0;
  const latencies: number[] = [];
  return {
    get answered() {
      return latencies.length;
    },
    get seconds() {
      return seconds;
    },
    add(slice) {
      seconds += slice.seconds;
      someoneWasFaster += slice.someoneWasFaster;
      processor =
        processor === null || slice.processorSeconds === null ? null : processor + slice.processorSeconds;
      for (const latency of slice.latencies) latencies.push(latency);
    },
    turn: () => ({
      reservationsPerSecond: latencies.length / seconds,
      p50: quantile(latencies, 0.5),
      p99: quantile(latencies, 0.99),
      reservations: latencies.length,
      someoneWasFaster,
      loadMillis: processor === null ? null : (processor * 1000) / latencies.length,
    }),
  };
}

function optionsRead(args: string[]): Options | null {
  let values: Partial<Record<string, string | boolean>>;
  try {
    ({ values } = parseArgs({
      args,
      allowNegative: true,
      options: {
        help: { type: "boolean", short: "h" },
        quick: { type: "boolean" },
        sizes: { type: "string" },
        connections: { type: "string" },
        rounds: { type: "string" },
        seconds: { type: "string" },
        warmup: { type: "string" },
        pool: { type: "string" },
        growth: { type: "boolean" },
        racks: { type: "boolean" },
      },
    }));
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
  if (values["help"] === true) return null;
  const list = (name: string, fallback: number[], min: number): number[] => {
    const given = values[name];
    if (typeof given !== "string") return fallback;
    const numbers = given.split(",").map(Number);
    if (!numbers.every((number) => Number.isFinite(number) && number >= min))
      throw new UsageError(`--${name}: numbers of at least ${min}, separated by commas`);
    return numbers;
  };
  const one = (name: string, fallback: number, min: number): number =>
    list(name, [fallback], min)[0] ?? fallback;
  const quick = values["quick"] === true;
  return {
    sizes: list("sizes", quick ? [1000, 10_000] : [1000, 10_000, 100_000], SMALLEST)
      .map(Math.floor)
      .sort((a, b) => a - b),
    connections: list("connections", quick ? [8, 32] : [1, 8, 32, 100], 1).map(Math.floor),
    rounds: Math.floor(one("rounds", quick ? 3 : 5, 1)),
    seconds: one("seconds", quick ? 1 : 1.5, 0.1),
    warmup: one("warmup", quick ? 6 : 15, 0),
    pool: Math.floor(one("pool", 10, 1)),
    growth: values["growth"] !== false,
    racks: values["racks"] === true,
  };
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

/** Progress, beside the report. */
function say(text: string): void {
  process.stderr.write(`${text}\n`);
}
