// The processes of a run: started for real, and ended whatever happens.
import { type ChildProcess, fork, spawn } from "node:child_process";
import { once } from "node:events";
import { fileURLToPath } from "node:url";
import type { LoadJob, LoadReport, LoadResult } from "./load.ts";

const ROOT = fileURLToPath(new URL("..", import.meta.url));
const START_SECONDS = 30;
const STOP_SECONDS = 10;

/** A service that listens. */
export interface Service {
  readonly url: string;
  /** The last of what it printed: when an answer is wrong, why. */
  said(): string;
  stop(): Promise<void>;
}

/**
 * Starts a service and waits until it prints its address.
 * @throws Error with what it printed, when it ends instead.
 */
export async function serviceStart(
  args: readonly string[],
  env: Readonly<Record<string, string>>,
): Promise<Service> {
  // Settings of the shell that is running this would silently change what is measured.
  const inherited = Object.entries(process.env).filter(([name]) => !/^(HOLDFAST_|DATABASE_|PG)/.test(name));
  const child = spawn(process.execPath, args, {
    cwd: ROOT,
    env: { ...Object.fromEntries(inherited), ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let printed = "";
  const address = new Promise<string>((resolve, reject) => {
    const read = (chunk: Buffer) => {
      printed = `${printed}${chunk}`.slice(-3000);
      const url = /at (http:\/\/[^\s/]+)\S*\n/.exec(printed)?.[1];
      if (url !== undefined) resolve(url);
    };
    child.stdout.on("data", read);
    child.stderr.on("data", read);
    child.once("error", reject);
    child.once("exit", () => reject(new Error(`${args.join(" ")} ended:\n${printed}`)));
    setTimeout(
      () => reject(new Error(`${args.join(" ")} did not start:\n${printed}`)),
      START_SECONDS * 1000,
    ).unref();
  });
  try {
    return { url: await address, said: () => printed, stop: () => end(child) };
  } catch (error) {
    await end(child);
    throw error;
  }
}

/** The load generator's process. */
export interface Load {
  run(job: LoadJob): Promise<LoadResult>;
  stop(): Promise<void>;
}

/** Starts the load generator. It is kept for the whole run, so that it is warm as well. */
export function loadStart(): Load {
  const child = fork(fileURLToPath(new URL("load.ts", import.meta.url)), { stdio: "inherit" });
  return {
    run(job) {
      return new Promise((resolve, reject) => {
        const ended = () => reject(new Error("the load generator ended"));
        child.once("exit", ended);
        child.once("message", (report: LoadReport) => {
          child.off("exit", ended);
          if ("error" in report) reject(new Error(report.error));
          else resolve(report.result);
        });
        child.send(job);
      });
    },
    stop: () => end(child),
  };
}

/** Asks a process to end, and ends it when it does not. */
export async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return;
  const exit = once(child, "exit");
  child.kill("SIGTERM");
  const timer = setTimeout(() => child.kill("SIGKILL"), STOP_SECONDS * 1000);
  await exit;
  clearTimeout(timer);
}
