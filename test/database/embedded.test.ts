// Real processes and a real server: who owns it, who is a guest, and what a kill leaves behind.
import { type ChildProcess, spawn, spawnSync } from "node:child_process";
import { randomBytes } from "node:crypto";
import { existsSync, readdirSync, readFileSync, statSync } from "node:fs";
import { mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import pg from "pg";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { type EmbeddedDatabase, EmbeddedDatabaseInUse, embeddedOpen } from "../../src/database/embedded.ts";
import { waitUntil } from "../support/barrier.ts";

const EMBEDDED = new URL("../../src/database/embedded.ts", import.meta.url).href;
const SETTINGS = { fsync: "off" };

/** A cluster that was started and stopped once; most tests begin with a copy, since initdb takes its time. */
let prepared: string;
let root: string;
let dataDir: string;
const children: Opener[] = [];
const opened: EmbeddedDatabase[] = [];

beforeAll(async () => {
  prepared = await mkdtemp(join(tmpdir(), "holdfast-embedded-"));
  await (await embeddedOpen({ dataDir: prepared, exclusive: true, settings: SETTINGS })).stop();
});

afterAll(() => rm(prepared, { recursive: true, force: true }));

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), "holdfast-embedded-"));
  dataDir = join(root, "data");
});

afterEach(async () => {
  for (const child of children.splice(0)) child.kill();
  for (const database of opened.splice(0)) await database.stop();
  // Whatever a killed owner left is adopted, and stopped.
  if (postmaster() !== null) await (await embeddedOpen({ dataDir, exclusive: false })).stop();
  await rm(root, { recursive: true, force: true, maxRetries: 5 });
});

/** Puts a copy of the prepared cluster where the test looks for it; its files keep their owner. */
function clusterCopy(): void {
  const { status, stderr } = spawnSync("cp", ["-a", prepared, dataDir], { encoding: "utf8" });
  if (status !== 0) throw new Error(`the prepared cluster could not be copied: ${stderr}`);
}

async function open(exclusive: boolean): Promise<EmbeddedDatabase> {
  const database = await embeddedOpen({ dataDir, exclusive, settings: SETTINGS });
  opened.push(database);
  return database;
}

/** Another process that opens the same directory, and holds it until it is told to stop or is killed. */
class Opener {
  readonly process: ChildProcess;
  readonly exited: Promise<number | null>;
  /** `owner URL`, `guest URL`, or `refused NAME MESSAGE`. */
  readonly answer: Promise<string>;
  #said = "";
  #errors = "";

  constructor(exclusive: boolean) {
    const script = `
      const { embeddedOpen } = await import(${JSON.stringify(EMBEDDED)});
      try {
        const database = await embeddedOpen({ dataDir: process.argv[1], exclusive: ${exclusive}, settings: ${JSON.stringify(SETTINGS)} });
        console.log((database.owner ? "owner " : "guest ") + database.url);
        process.stdin.once("data", async () => { await database.stop(); process.exit(0); });
      } catch (error) {
        console.log("refused " + error.name + " " + error.message.replaceAll("\\n", " "));
        process.exit(1);
      }`;
    this.process = spawn(process.execPath, ["--input-type=module", "--eval", script, dataDir], {
      stdio: ["pipe", "pipe", "pipe"],
    });
    children.push(this);
    this.exited = new Promise((done) => this.process.once("close", (code) => done(code)));
    this.answer = new Promise((done, failed) => {
      this.process.stdout?.on("data", (chunk) => {
        this.#said += String(chunk);
        if (this.#said.includes("\n")) done(this.#said.split("\n")[0] as string);
      });
      this.process.stderr?.on("data", (chunk) => {
        this.#errors += String(chunk);
      });
      this.process.once("close", () => failed(new Error(`the other process said nothing: ${this.#errors}`)));
    });
    // A process that is killed on purpose has nothing to say.
    this.answer.catch(() => undefined);
  }

  get pid(): number {
    return this.process.pid as number;
  }

  kill(): void {
    this.process.kill("SIGKILL");
  }

  async stop(): Promise<void> {
    this.process.stdin?.write("stop\n");
    await this.exited;
  }
}

/** Process id in the cluster's lock file. */
function postmaster(): number | null {
  try {
    return Number.parseInt(readFileSync(join(dataDir, "postgres", "postmaster.pid"), "utf8"), 10);
  } catch {
    return null;
  }
}

function runs(pid: number): boolean {
  try {
    process.kill(pid, 0);
    return !existsSync("/proc/self") || !/^State:\s+Z/m.test(readFileSync(`/proc/${pid}/status`, "utf8"));
  } catch {
    return false;
  }
}

async function query<Row extends pg.QueryResultRow>(url: string, text: string): Promise<Row[]> {
  const client = new pg.Client({ connectionString: url });
  client.on("error", () => undefined);
  await client.connect();
  try {
    return (await client.query<Row>(text)).rows;
  } finally {
    await client.end();
  }
}

test("a first start makes a cluster, a second one finds its data again", async () => {
  const first = await open(true);
  expect(first.owner).toBe(true);
  await query(first.url, "CREATE TABLE kept AS SELECT 7 AS value");
  const [about] = await query<{ version: number; encoding: string; auth: string; fsync: string }>(
    first.url,
    `SELECT current_setting('server_version_num')::int AS version, current_setting('server_encoding') AS encoding,
            current_setting('password_encryption') AS auth, current_setting('fsync') AS fsync`,
  );
  expect(about).toMatchObject({ encoding: "UTF8", auth: "scram-sha-256", fsync: "off" });
  expect(about?.version).toBeGreaterThanOrEqual(180_000);
  expect(statSync(join(dataDir, "postgres.password")).mode & 0o777).toBe(0o600);
  const pid = postmaster() as number;
  await Promise.all([first.stop(), first.stop()]);
  expect(runs(pid)).toBe(false);
  expect(postmaster()).toBeNull();

  const second = await open(true);
  expect(await query(second.url, "SELECT value FROM kept")).toEqual([{ value: 7 }]);
});

test("nobody gets in without the password, and no socket is in the file system", async () => {
  clusterCopy();
  const { url } = await open(true);
  const wrong = new URL(url);
  wrong.password = "wrong";
  await expect(query(wrong.href, "SELECT 1")).rejects.toMatchObject({ code: "28P01" });
  expect(await query(url, "SHOW unix_socket_directories")).toEqual([{ unix_socket_directories: "" }]);
  expect(await query(url, "SHOW listen_addresses")).toEqual([{ listen_addresses: "127.0.0.1" }]);
});

test("a second server on a live directory is refused, and told which process has it and what to do", async () => {
  clusterCopy();
  const owner = new Opener(true);
  await owner.answer;
  const refusal = await embeddedOpen({ dataDir, exclusive: true }).catch((error: unknown) => error);
  expect(refusal).toBeInstanceOf(EmbeddedDatabaseInUse);
  const { message } = refusal as Error;
  expect(message).toContain(`process ${owner.pid}`);
  expect(message).toContain(dataDir);
  expect(message).toContain("HOLDFAST_DATA_DIR");
});

test("a guest works beside the owner, and leaves the server running when it goes", async () => {
  clusterCopy();
  const owner = new Opener(true);
  const url = (await owner.answer).replace("owner ", "");
  const guest = await open(false);
  expect(guest.owner).toBe(false);
  expect(guest.url).toBe(url);
  await query(guest.url, "CREATE TABLE guests AS SELECT 1 AS n");
  await guest.stop();
  expect(await query(url, "SELECT n FROM guests")).toEqual([{ n: 1 }]);
  const pid = postmaster() as number;
  await owner.stop();
  expect(runs(pid)).toBe(false);
});

test("an owner killed by SIGKILL leaves a server that the next start adopts, with its data", async () => {
  clusterCopy();
  const owner = new Opener(true);
  const url = (await owner.answer).replace("owner ", "");
  await query(url, "CREATE TABLE kept AS SELECT 7 AS value");
  const pid = postmaster();
  owner.kill();
  await owner.exited;
  await waitUntil(
    async () =>
      (await query(url, "SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid <> 0")).length === 0,
    "the server has noticed its owner's death",
  );
  const heir = await open(true);
  expect(heir.owner).toBe(true);
  expect(postmaster()).toBe(pid);
  expect(await query(heir.url, "SELECT value FROM kept")).toEqual([{ value: 7 }]);
  await heir.stop();
  expect(runs(pid as number)).toBe(false);
});

test("a server killed with its owner is started anew, with everything that was committed", async () => {
  clusterCopy();
  const owner = new Opener(true);
  const url = (await owner.answer).replace("owner ", "");
  await query(url, "CREATE TABLE kept AS SELECT 7 AS value");
  owner.kill();
  process.kill(postmaster() as number, "SIGKILL");
  await owner.exited;
  const next = await open(true);
  expect(next.owner).toBe(true);
  expect(await query(next.url, "SELECT value FROM kept")).toEqual([{ value: 7 }]);
});

test.each([
  ["this very process", () => process.pid],
  ["the first process of the system", () => 1],
])("a lock file left by a crash, whose process id now is %s, does not prevent a start", async (_, reused) => {
  clusterCopy();
  const first = await open(true);
  const path = join(dataDir, "postgres", "postmaster.pid");
  const left = readFileSync(path, "utf8");
  await first.stop();
  await writeFile(path, left.replace(/^\d+/, String(reused())));
  const next = await open(true);
  expect(next.owner).toBe(true);
  expect(postmaster()).not.toBe(reused());
  expect(readdirSync(join(dataDir, "postgres")).filter((name) => name.includes("stale"))).toEqual([]);
});

test("a lock file whose process id now is another PostgreSQL's neither prevents a start nor harms the other", async () => {
  clusterCopy();
  const other = await embeddedOpen({
    dataDir: join(root, "other"),
    exclusive: true,
    persistent: false,
    settings: SETTINGS,
  });
  try {
    const path = join(root, "other", "postgres", "postmaster.pid");
    const first = await open(true);
    await first.stop();
    await writeFile(join(dataDir, "postgres", "postmaster.pid"), readFileSync(path, "utf8"));
    const next = await open(true);
    expect(next.owner).toBe(true);
    expect(next.url).not.toBe(other.url);
    expect(await query(other.url, "SELECT 1 AS one")).toEqual([{ one: 1 }]);
  } finally {
    await other.stop();
  }
  expect(existsSync(join(root, "other"))).toBe(false);
});

test("two first starts at once: one owner, one refused, one whole cluster", async () => {
  const answers = await Promise.all([new Opener(true).answer, new Opener(true).answer]);
  expect(answers.filter((answer) => answer.startsWith("owner "))).toHaveLength(1);
  expect(answers.filter((answer) => answer.startsWith("refused EmbeddedDatabaseInUse "))).toHaveLength(1);
  const url = (answers.find((answer) => answer.startsWith("owner ")) as string).replace("owner ", "");
  expect(await query(url, "SELECT current_database() AS name")).toEqual([{ name: "holdfast" }]);
  expect(readdirSync(dataDir).filter((name) => name.startsWith("postgres.new-"))).toEqual([]);
});

test("four commands at once that may be guests share one server", async () => {
  clusterCopy();
  const answers = await Promise.all(Array.from({ length: 4 }, () => new Opener(false).answer));
  expect(answers.filter((answer) => answer.startsWith("owner "))).toHaveLength(1);
  expect(new Set(answers.map((answer) => answer.split(" ")[1])).size).toBe(1);
});

test("two opens in one process share one server", async () => {
  const [first, second] = await Promise.all([open(false), open(false)]);
  expect(first.url).toBe(second.url);
  expect([first.owner, second.owner].sort()).toEqual([false, true]);
});

test("a first start killed in the middle of initdb leaves no half cluster, and the next start cleans up", async () => {
  const killed = new Opener(true);
  const drafts = () =>
    (existsSync(dataDir) ? readdirSync(dataDir) : []).filter((name) =>
      /^postgres\.new-\d+-[0-9a-f]+$/.test(name),
    );
  await waitUntil(
    () => drafts().some((name) => existsSync(join(dataDir, name, "base"))),
    "initdb has begun to fill its directory",
  );
  killed.kill();
  await killed.exited;
  expect(existsSync(join(dataDir, "postgres"))).toBe(false);
  const next = await open(true);
  expect(next.owner).toBe(true);
  expect(await query(next.url, "SELECT 1 AS one")).toEqual([{ one: 1 }]);
  await next.stop();
  await (await open(true)).stop();
  expect(readdirSync(dataDir).filter((name) => name.startsWith("postgres.new-"))).toEqual([]);
});

test("an owner whose session is cut takes its lock again, so that a second start is still refused", async () => {
  clusterCopy();
  const owner = new Opener(true);
  const url = (await owner.answer).replace("owner ", "");
  const [before] = await query<{ pid: number }>(url, "SELECT pid FROM pg_locks WHERE locktype = 'advisory'");
  await query(url, `SELECT pg_terminate_backend(${before?.pid})`);
  await waitUntil(async () => {
    const [now] = await query<{ pid: number }>(url, "SELECT pid FROM pg_locks WHERE locktype = 'advisory'");
    return now !== undefined && now.pid !== before?.pid;
  }, "the owner holds its lock again");
  await expect(embeddedOpen({ dataDir, exclusive: true })).rejects.toThrow(`process ${owner.pid}`);
  const pid = postmaster() as number;
  await owner.stop();
  expect(runs(pid)).toBe(false);
});

test("a start while the owner stops waits for its end and starts anew", async () => {
  clusterCopy();
  const owner = new Opener(true);
  await owner.answer;
  const pid = postmaster();
  const stopped = owner.stop();
  let next: EmbeddedDatabase | undefined;
  while (next === undefined) {
    try {
      next = await open(true);
    } catch (error) {
      // Until the owner has begun to stop, it is refused.
      if (!(error instanceof EmbeddedDatabaseInUse)) throw error;
      await delay(1);
    }
  }
  await stopped;
  expect(next.owner).toBe(true);
  expect(postmaster()).not.toBe(pid);
  expect(await query(next.url, "SELECT 1 AS one")).toEqual([{ one: 1 }]);
});

test("a password file that is not the cluster's is named", async () => {
  clusterCopy();
  const first = await open(true);
  await first.stop();
  const path = join(dataDir, "postgres.password");
  const right = readFileSync(path, "utf8");
  await writeFile(path, randomBytes(24).toString("base64url"));
  try {
    await expect(open(true)).rejects.toThrow(/password in .* is not that of/);
  } finally {
    await writeFile(path, right);
  }
});

test("a server that cannot start says why", async () => {
  clusterCopy();
  await expect(
    embeddedOpen({ dataDir, exclusive: true, settings: { shared_buffers: "nonsense" } }),
  ).rejects.toThrow(/did not start:[\s\S]*shared_buffers/);
});

test("without persistence the whole directory goes with the server", async () => {
  clusterCopy();
  const database = await embeddedOpen({ dataDir, exclusive: true, persistent: false, settings: SETTINGS });
  await database.stop();
  expect(existsSync(dataDir)).toBe(false);
});
