// Runs floor.sql with pgbench.
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { YARDSTICK_SETTINGS } from "./dataset.ts";

const SCRIPT = fileURLToPath(new URL("floor.sql", import.meta.url));
/** permute() came with version 14. */
const OLDEST = 14;
/** Transactions of each client that open its connection, plans and caches; the others are measured. */
const RAMP = 2;

/** The floor of one slice. */
export interface FloorResult {
  /** Transactions without the ramp's. */
  readonly answered: number;
  readonly ramped: number;
  /** Time in which so many clients answer so many, at the mean latency seen. */
  readonly seconds: number;
  /** Milliseconds of each. */
  readonly latencies: number[];
}

/** Null when pgbench can be used, else why not and what to do. */
export async function floorMissing(): Promise<string | null> {
  const { code, output } = await pgbench(["--version"], ".").catch(() => ({ code: 1, output: "" }));
  if (code !== 0) {
    return "pgbench is not in PATH, so the floor is left out (Debian: postgresql-contrib or postgresql-15; Fedora: postgresql-contrib; Homebrew: postgresql).";
  }
  const version = Number(/\d+/.exec(output)?.[0] ?? 0);
  return version >= OLDEST
    ? null
    : `pgbench ${version} is too old, so the floor is left out (${OLDEST} or newer).`;
}

/**
 * Reserves with `clients` connections, at most `orders` in all.
 * Each slice starts new server processes, which first fill their caches; a service's connections live
 * on. So every client's first transactions are left out, and the rate is that of a closed loop:
 * clients divided by the mean latency.
 */
export async function floorRun(
  url: string,
  secret: string,
  clients: number,
  orders: number,
  run: string,
  directory: string,
  signal: AbortSignal,
): Promise<FloorResult> {
  const each = Math.max(RAMP + 1, Math.floor(orders / clients));
  const { code, output } = await pgbench(
    [
      ...["--no-vacuum", "--protocol=prepared", `--file=${SCRIPT}`, `--client=${clients}`],
      ...[`--jobs=${Math.min(2, clients)}`, `--transactions=${each}`, "--log", "--log-prefix=floor"],
      ...[`--define=run=${run}`, `--define=token=${secret}`, `--define=clients=${clients}`, "--define=n=0"],
      url,
    ],
    directory,
    signal,
  );
  if (code !== 0 || /aborted/.test(output)) throw new Error(`pgbench failed:\n${output.slice(-2000)}`);

  const latencies: number[] = [];
  for (const file of (await readdir(directory)).filter((name) => name.startsWith("floor."))) {
    const path = join(directory, file);
    const seen = new Map<number, number>();
    for (const line of (await readFile(path, "utf8")).split("\n")) {
      // Client, number of its transaction, microseconds, and more.
      const [client, , micros] = line.split(" ").map(Number);
      if (client === undefined || micros === undefined) continue;
      const before = seen.get(client) ?? 0;
      seen.set(client, before + 1);
      if (before >= RAMP) latencies.push(micros / 1000);
    }
    await rm(path);
  }
  const total = latencies.reduce((sum, value) => sum + value, 0);
  return {
    answered: latencies.length,
    ramped: each * clients - latencies.length,
    seconds: total / clients / 1000,
    latencies,
  };
}

async function pgbench(
  args: readonly string[],
  cwd: string,
  signal?: AbortSignal,
): Promise<{ code: number; output: string }> {
  const child = spawn("pgbench", args, {
    cwd,
    env: { ...process.env, PGOPTIONS: YARDSTICK_SETTINGS },
    stdio: ["ignore", "pipe", "pipe"],
    ...(signal === undefined ? {} : { signal }),
  });
  let output = "";
  const read = (chunk: Buffer) => {
    output += chunk.toString();
  };
  child.stdout.on("data", read);
  child.stderr.on("data", read);
  const [code] = (await once(child, "close")) as [number | null];
  return { code: code ?? 1, output };
}
