import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync } from "node:fs";
import { chmod, mkdtemp, readFile, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { waitUntil } from "./barrier.ts";
import { answers, freePort } from "./ports.ts";

/** Debian's package as it comes. */
const SETTINGS = "/etc/nginx/nginx.conf";

/** Whether nginx is on this machine, with the settings that Debian's package brings. */
export function nginxInstalled(): boolean {
  return existsSync(SETTINGS) && spawnSync("nginx", ["-v"]).status === 0;
}

/** A real nginx in front of a server: the package's own settings, and one `proxy_pass`. */
export async function nginxStart(target: string): Promise<{ url: string; stop(): Promise<void> }> {
  const port = await freePort();
  const directory = await mkdtemp(join(tmpdir(), "holdfast-nginx-"));
  // Its workers become somebody else, and buffer here.
  await chmod(directory, 0o755);
  const file = join(directory, "nginx.conf");
  const site = `server { listen 127.0.0.1:${port}; location / { proxy_pass ${new URL(target).origin}; } }`;
  const settings = (await readFile(SETTINGS, "utf8"))
    .replace(/^pid .*$/m, `pid ${directory}/nginx.pid;`)
    .replaceAll("/var/log/nginx", directory)
    .replace(/include \/etc\/nginx\/conf\.d\/.*$/m, "")
    .replace(/include \/etc\/nginx\/sites-enabled\/.*$/m, site);
  if (!settings.includes(site)) throw new Error(`${SETTINGS} is not as it comes`);
  await writeFile(file, settings);
  const child = spawn("nginx", ["-c", file, "-g", "daemon off;"], { stdio: "ignore" });
  const ended = once(child, "exit");
  await waitUntil(() => child.exitCode !== null || answers(port), "nginx listens, or ends");
  if (child.exitCode !== null) throw new Error(`nginx ended with ${child.exitCode}`);
  return {
    url: `http://127.0.0.1:${port}${new URL(target).pathname}`,
    async stop() {
      // Its workers end with it.
      child.kill("SIGTERM");
      await ended;
      await rm(directory, { recursive: true, force: true });
    },
  };
}
