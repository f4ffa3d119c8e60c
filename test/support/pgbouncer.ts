import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { waitUntil } from "./barrier.ts";
import { answers, freePort } from "./ports.ts";

/** A PgBouncer in transaction mode in front of the test server. */
export interface Pooler {
  /** Where it listens: host and port. */
  readonly address: string;
  /** The same database as `direct`, by way of the pooler. */
  through(direct: string): string;
  stop(): Promise<void>;
}

/** Whether the command is on this machine (Debian's package `pgbouncer`). */
export function pgbouncerInstalled(): boolean {
  return spawnSync("pgbouncer", ["--version"]).status === 0;
}

/** Starts a real PgBouncer: transaction mode, two server connections a database. */
export async function pgbouncerStart(serverUrl: string): Promise<Pooler> {
  const server = new URL(serverUrl);
  const port = await freePort();
  const directory = await mkdtemp(join(tmpdir(), "holdfast-pgbouncer-"));
  const file = join(directory, "pgbouncer.ini");
  const login = [
    `host=${server.hostname}`,
    `port=${server.port || "5432"}`,
    `user=${decodeURIComponent(server.username)}`,
    `password=${decodeURIComponent(server.password)}`,
  ].join(" ");
  await writeFile(
    file,
    [
      "[databases]",
      `* = ${login}`,
      "[pgbouncer]",
      "listen_addr = 127.0.0.1",
      `listen_port = ${port}`,
      "unix_socket_dir =",
      "auth_type = any",
      "pool_mode = transaction",
      "default_pool_size = 2",
      "max_client_conn = 500",
      "ignore_startup_parameters = extra_float_digits",
      // It refuses to serve as root, and reads its settings before it becomes somebody else.
      ...(process.getuid?.() === 0 ? ["user = nobody"] : []),
    ].join("\n"),
    { mode: 0o600 },
  );
  const child = spawn("pgbouncer", ["--quiet", file], { stdio: "ignore" });
  const ended = once(child, "exit");
  await waitUntil(() => child.exitCode !== null || answers(port), "PgBouncer listens, or ends");
  if (child.exitCode !== null) throw new Error(`PgBouncer ended with ${child.exitCode}`);
  return {
    address: `127.0.0.1:${port}`,
    through: (direct) => poolerUrl(`127.0.0.1:${port}`, direct),
    async stop() {
      child.kill("SIGKILL");
      await ended;
      await rm(directory, { recursive: true, force: true });
    },
  };
}

/** A database by way of the pooler at `address`. */
export function poolerUrl(address: string, direct: string): string {
  const url = new URL(direct);
  url.host = address;
  return url.href;
}
