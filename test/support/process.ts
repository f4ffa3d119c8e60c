import { type ChildProcess, spawn } from "node:child_process";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { waitUntil } from "./barrier.ts";

/** A `holdfast` process that was started for real. */
export interface HoldfastProcess {
  readonly child: ChildProcess;
  /** What it has written to both outputs so far. */
  output(): string;
  /** Waits for the line that says where it serves, and returns the address of GraphQL. */
  served(): Promise<string>;
  /** Waits until it has written something that matches, and returns the match. */
  wrote(pattern: RegExp): Promise<RegExpExecArray>;
  /** Its exit code; null when a signal ended it. */
  ended(): Promise<number | null>;
}

const running = new Set<ChildProcess>();

/**
 * Starts `holdfast` with these arguments.
 * @param environment added to this process's own, without its DATABASE_URL and NODE_ENV.
 */
export function holdfast(args: string[], environment: Record<string, string>): HoldfastProcess {
  // NODE_ENV=test is this process's own business; with it, streams are pinged forty times as often.
  const { DATABASE_URL: _, NODE_ENV: __, ...inherited } = process.env;
  const child = spawn(process.execPath, ["src/main.ts", ...args], {
    stdio: ["ignore", "pipe", "pipe"],
    // A suite starts some sixty processes of the same code.
    env: {
      ...inherited,
      NODE_COMPILE_CACHE: join(tmpdir(), "holdfast-compile-cache"),
      PORT: "0",
      HOLDFAST_LOG_LEVEL: "info",
      ...environment,
    },
  });
  running.add(child);
  const chunks: Buffer[] = [];
  child.stdout?.on("data", (chunk: Buffer) => chunks.push(chunk));
  child.stderr?.on("data", (chunk: Buffer) => chunks.push(chunk));
  const ended = new Promise<number | null>((resolve) => {
    child.once("close", (code) => {
      running.delete(child);
      resolve(code);
    });
  });
  const output = () => Buffer.concat(chunks).toString("utf8");
  const wrote = async (pattern: RegExp) => {
    const found = () => pattern.exec(output());
    await waitUntil(
      () => found() !== null || child.exitCode !== null,
      `the process writes ${pattern}, or ends`,
    );
    const match = found();
    if (match === null) throw new Error(`the process ended without writing ${pattern}:\n${output()}`);
    return match;
  };
  return {
    child,
    output,
    wrote,
    served: async () => (await wrote(/Holdfast is at (\S+)/))[1] as string,
    ended: () => ended,
  };
}

/** Ends every process that a test has left running. */
export async function stopAll(): Promise<void> {
  for (const child of running) child.kill("SIGKILL");
}
