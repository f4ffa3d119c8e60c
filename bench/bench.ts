// `npm run bench`: what a reservation costs, beside a floor and a hand-written service, in one run.
// See docs/benchmark.md.
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { mkdir, mkdtemp, writeFile } from "node:fs/promises";
import { createServer } from "node:net";
import { cpus, tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { fileURLToPath } from "node:url";
import { parseArgs, promisify } from "node:util";
import pg from "pg";
import { apiTokenEnsure } from "../src/access/tokens.ts";
import { databaseOpen } from "../src/database/client.ts";
import { embeddedOpen } from "../src/database/embedded.ts";
import { migrate } from "../src/database/migrate.ts";
import { datasetFill, ORDERS, restock, sellOut } from "./dataset.ts";
import { productTarget, restTarget, type Slice, slice, type Target, TOKEN } from "./load.ts";

const { values: flags } = parseArgs({
  options: {
    quick: { type: "boolean", default: false },
    sizes: { type: "string" },
    connections: { type: "string" },
    rounds: { type: "string" },
    seconds: { type: "string" },
    warmup: { type: "string" },
    pool: { type: "string" },
  },
});
const list = (given: string | undefined, fallback: number[]) => given?.split(",").map(Number) ?? fallback;
const sizes = list(flags.sizes, flags.quick ? [1000, 10_000] : [1000, 10_000, 100_000]);
const connectionCounts = list(flags.connections, flags.quick ? [8, 32] : [1, 8, 32, 100]);
const rounds = Number(flags.rounds ?? 3);
const seconds = Number(flags.seconds ?? (flags.quick ? 1.5 : 2));
const warmup = Number(flags.warmup ?? (flags.quick ? 5 : 20));
const poolSize = Number(flags.pool ?? 10);

/** The product must reach this share of the hand-written service at 8 and 32 connections. */
const CRITERION = 0.65;
const CRITERION_AT = [8, 32];

type Contender = "floor" | "rest" | "rest-function" | "product";
const CONTENDERS: readonly Contender[] = ["product", "rest", "rest-function", "floor"];

interface Measured {
  readonly perSecond: number;
  readonly p50: number | null;
  readonly p99: number | null;
  readonly lost: number;
}

const children = new Set<ChildProcess>();
const cleanups: (() => Promise<unknown>)[] = [];

async function main(): Promise<boolean> {
  const directory = await mkdtemp(join(tmpdir(), "holdfast-bench-"));
  // PostgreSQL's own settings, full durability among them; only room for the connections.
  const server = await embeddedOpen({
    dataDir: directory,
    exclusive: true,
    persistent: false,
    settings: { max_connections: "300" },
  });
  cleanups.push(() => server.stop());
  const floorThere = await hasPgbench();
  if (!floorThere)
    say("pgbench is not on the PATH (Debian: postgresql-contrib or postgresql-15): the floor is left out.");
  say(
    `${cpus().length} cores, shared by PostgreSQL, the contender and the load; pool of ${poolSize}; ${rounds} rounds of ${seconds} s each.`,
  );

  const results: object[] = [];
  const growth: object[] = [];
  let passed = true;
  for (const size of sizes) {
    const url = await databaseCreate(server.url, `bench_${size}`);
    const pool = new pg.Pool({ connectionString: url, max: 4 });
    await datasetFill(pool, size);
    const { rows } = await pool.query<{ id: string }>("SELECT id FROM bench_organization ORDER BY n");
    const organizations = rows.map((row) => row.id);
    const ports = { product: await freePort(), rest: await freePort(), "rest-function": await freePort() };
    const targets: Record<Exclude<Contender, "floor">, Target> = {
      product: productTarget(ports.product),
      rest: restTarget(ports.rest),
      "rest-function": restTarget(ports["rest-function"]),
    };
    const processes = [
      start("src/main.ts", ports.product, url, {
        HOLDFAST_MIGRATE: "0",
        HOLDFAST_SWEEP_SECONDS: "0",
        HOLDFAST_HOLD_LIMIT: "100000",
        HOLDFAST_LOG_LEVEL: "warn",
      }),
      start("bench/rest.ts", ports.rest, url, {}),
      start("bench/rest.ts", ports["rest-function"], url, { REST_FUNCTION: "1" }),
    ];
    for (const target of Object.values(targets)) await untilUp(target.url);
    for (const target of Object.values(targets))
      await measureHttp(pool, target, organizations, 8, size, warmup / 3);

    say(`\n${size} machines`);
    say("conns  contender      res/s (median, min..max)      p50 ms   p99 ms   lost   product/this");
    for (const connections of connectionCounts) {
      const byContender = new Map<Contender, Measured[]>(CONTENDERS.map((contender) => [contender, []]));
      for (let round = 0; round < rounds; round++) {
        for (const contender of CONTENDERS) {
          if (contender === "floor" && !floorThere) continue;
          const measured =
            contender === "floor"
              ? await measureFloor(pool, url, connections, size)
              : await measureHttp(pool, targets[contender], organizations, connections, size, seconds);
          byContender.get(contender)?.push(measured);
        }
      }
      const own = byContender.get("product") ?? [];
      for (const [contender, measured] of byContender) {
        if (measured.length === 0) continue;
        const perSecond = measured.map((one) => one.perSecond);
        const ratios = own.map((one, at) => one.perSecond / (measured[at]?.perSecond ?? Number.NaN));
        const line = {
          machines: size,
          connections,
          contender,
          perSecond: median(perSecond),
          perSecondSpread: [Math.min(...perSecond), Math.max(...perSecond)],
          p50: median(measured.map((one) => one.p50 ?? Number.NaN)),
          p99: median(measured.map((one) => one.p99 ?? Number.NaN)),
          lost: measured.reduce((sum, one) => sum + one.lost, 0),
          productShare: median(ratios),
          productShareSpread: [Math.min(...ratios), Math.max(...ratios)],
        };
        results.push(line);
        say(
          [
            String(connections).padStart(5),
            contender.padEnd(13),
            `${line.perSecond.toFixed(0)} (${Math.min(...perSecond).toFixed(0)}..${Math.max(...perSecond).toFixed(0)})`.padEnd(
              28,
            ),
            line.p50.toFixed(1).padStart(7),
            line.p99.toFixed(1).padStart(8),
            String(line.lost).padStart(6),
            contender === "product"
              ? ""
              : `   ${line.productShare.toFixed(2)} (${Math.min(...ratios).toFixed(2)}..${Math.max(...ratios).toFixed(2)})`,
          ].join("  "),
        );
        if (contender === "rest" && CRITERION_AT.includes(connections) && line.productShare < CRITERION)
          passed = false;
      }
    }

    const full = await costOfOne(pool, targets.product, organizations);
    await restock(pool);
    await sellOut(pool);
    const nearlySoldOut = await costOfOne(pool, targets.product, organizations);
    growth.push({ machines: size, p50Ms: full, p50MsWhen999PerMilleHeld: nearlySoldOut });
    say(
      `one reservation at 1 connection, p50: ${full.toFixed(2)} ms on a full shelf, ${nearlySoldOut.toFixed(2)} ms with 99.9 % held`,
    );

    for (const child of processes) await stop(child);
    await pool.end();
  }

  say("\nHow a reservation's cost grows (p50 ms, 1 connection)");
  for (const line of growth) say(JSON.stringify(line));
  const directoryOut = fileURLToPath(new URL("results/", import.meta.url));
  await mkdir(directoryOut, { recursive: true });
  const path = join(directoryOut, `${new Date().toISOString().replaceAll(":", "-")}.json`);
  await writeFile(
    path,
    JSON.stringify(
      { at: new Date(), cores: cpus().length, poolSize, rounds, seconds, results, growth },
      null,
      2,
    ),
  );
  say(`\nAs JSON: ${path}`);
  const checked = connectionCounts.some((count) => CRITERION_AT.includes(count));
  say(
    !checked
      ? "The criterion was not measured."
      : `The product ${passed ? "reaches" : "MISSES"} ${CRITERION} of the hand-written service at ${CRITERION_AT.join(" and ")} connections.`,
  );
  return passed;
}

/** Sends slices that use up at most half of what fits, restocking in between, until the time is over. */
async function measureHttp(
  pool: pg.Pool,
  target: Target,
  organizations: readonly string[],
  connections: number,
  size: number,
  wanted: number,
): Promise<Measured> {
  const slices: Slice[] = [];
  let spent = 0;
  while (spent < wanted) {
    await restock(pool);
    const done = await slice(target, organizations, connections, sliceOf(size, wanted));
    slices.push(done);
    spent += done.seconds;
  }
  const latencies = slices.flatMap((one) => one.latencies).sort((a, b) => a - b);
  return {
    perSecond: slices.reduce((sum, one) => sum + one.won, 0) / spent,
    p50: latencies[Math.floor(latencies.length * 0.5)] ?? null,
    p99: latencies[Math.floor(latencies.length * 0.99)] ?? null,
    lost: slices.reduce((sum, one) => sum + one.lost, 0),
  };
}

async function measureFloor(
  pool: pg.Pool,
  url: string,
  connections: number,
  size: number,
): Promise<Measured> {
  let done = 0;
  let spent = 0;
  let latency = 0;
  while (spent < seconds) {
    await restock(pool);
    const each = Math.max(1, Math.floor(sliceOf(size, seconds) / connections));
    const { stdout } = await promisify(execFile)(
      "pgbench",
      [
        "-n",
        "-M",
        "prepared",
        "-c",
        String(connections),
        "-j",
        "1",
        "-t",
        String(each),
        "-f",
        fileURLToPath(new URL("floor.sql", import.meta.url)),
        url,
      ],
      { maxBuffer: 10_000_000 },
    );
    const perSecond = Number(/tps = ([\d.]+)/.exec(stdout)?.[1]);
    const transactions = Number(/actually processed: (\d+)/.exec(stdout)?.[1]);
    latency = Number(/latency average = ([\d.]+)/.exec(stdout)?.[1]);
    done += transactions;
    spent += transactions / perSecond;
  }
  return { perSecond: done / spent, p50: latency, p99: null, lost: 0 };
}

/** Each order of the load fits one machine in 24 best; half of those are sold before the shelf is refilled. */
function sliceOf(size: number, wanted: number): number {
  return Math.max(ORDERS.length, Math.min(Math.floor(size / 2), Math.ceil(wanted * 1500)));
}

/** Median milliseconds of one reservation, the machine being given back (unmeasured) each time. */
async function costOfOne(pool: pg.Pool, target: Target, organizations: readonly string[]): Promise<number> {
  const latencies: number[] = [];
  const smallest = ORDERS[0];
  if (smallest === undefined) throw new Error("no orders");
  for (let at = 0; at < 220; at++) {
    const anywhere: Target = {
      ...target,
      body: (organization, key) => target.body(organization, key, { minCpuCores: 4 } as never),
    };
    const { latencies: one, won } = await slice(
      anywhere,
      [organizations[at % organizations.length] as string],
      1,
      1,
    );
    if (won !== 1) throw new Error("the only order lost");
    if (at >= 20) latencies.push(...one);
    await pool.query("DELETE FROM reservation WHERE order_reference = 'order'");
  }
  return median(latencies);
}

function start(script: string, port: number, url: string, more: Record<string, string>): ChildProcess {
  const child = spawn(process.execPath, [fileURLToPath(new URL(`../${script}`, import.meta.url))], {
    stdio: ["ignore", "ignore", "inherit"],
    env: {
      ...process.env,
      PORT: String(port),
      HOST: "127.0.0.1",
      DATABASE_URL: url,
      DATABASE_POOL_SIZE: String(poolSize),
      ...more,
    },
  });
  children.add(child);
  child.once("exit", () => children.delete(child));
  return child;
}

async function stop(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGTERM");
  await ended;
}

async function untilUp(url: URL): Promise<void> {
  for (let tries = 0; tries < 200; tries++) {
    try {
      await fetch(new URL("/", url), { redirect: "manual" });
      return;
    } catch {
      await delay(50);
    }
  }
  throw new Error(`${url.href} does not answer`);
}

async function databaseCreate(serverUrl: string, name: string): Promise<string> {
  const admin = new pg.Client({ connectionString: serverUrl });
  await admin.connect();
  await admin.query(`CREATE DATABASE ${name}`);
  await admin.end();
  const url = new URL(serverUrl);
  url.pathname = `/${name}`;
  await migrate(url.href);
  const database = databaseOpen(url.href, { poolSize: 1, namedStatements: false, onError: () => undefined });
  await apiTokenEnsure(database.db, TOKEN, "bench");
  await database.close();
  return url.href;
}

async function hasPgbench(): Promise<boolean> {
  return promisify(execFile)("pgbench", ["--version"]).then(
    () => true,
    () => false,
  );
}

async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const address = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  return typeof address === "object" && address !== null ? address.port : 0;
}

function median(values: number[]): number {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.floor(sorted.length / 2)] ?? Number.NaN;
}

function say(line: string): void {
  process.stdout.write(`${line}\n`);
}

async function cleanUp(): Promise<void> {
  for (const child of children) child.kill("SIGKILL");
  for (const cleanup of cleanups) await cleanup().catch(() => undefined);
}

process.once("SIGINT", () => void cleanUp().then(() => process.exit(130)));
try {
  process.exitCode = (await main()) ? 0 : 1;
} finally {
  await cleanUp();
}
