import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { chmod, mkdir, mkdtemp, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { waitUntil } from "./barrier.ts";
import { answers, freePort } from "./ports.ts";

/** Whether the command is on this machine (Debian's package `nginx`). */
export function nginxInstalled(): boolean {
  return spawnSync("nginx", ["-v"]).status === 0;
}

/** A real nginx in front of a server: Debian's settings, and one `proxy_pass`. */
export async function nginxStart(target: string): Promise<{ url: string; stop(): Promise<void> }> {
  const port = await freePort();
  const directory = await mkdtemp(join(tmpdir(), "holdfast-nginx-"));
  // Its workers become somebody else, and buffer here.
  await chmod(directory, 0o755);
  for (const name of ["body", "proxy", "fastcgi", "uwsgi", "scgi"])
    await mkdir(join(directory, name), { mode: 0o777 });
  const file = join(directory, "nginx.conf");
  await writeFile(
    file,
    `worker_processes auto;
daemon off;
pid ${directory}/nginx.pid;
error_log ${directory}/error.log;
events { worker_connections 768; }
http {
  sendfile on;
  tcp_nopush on;
  types_hash_max_size 2048;
  default_type application/octet-stream;
  access_log off;
  gzip on;
  client_body_temp_path ${directory}/body;
  proxy_temp_path ${directory}/proxy;
  fastcgi_temp_path ${directory}/fastcgi;
  uwsgi_temp_path ${directory}/uwsgi;
  scgi_temp_path ${directory}/scgi;
  server {
    listen 127.0.0.1:${port};
    location / { proxy_pass ${new URL(target).origin}; }
  }
}
`,
  );
  const child = spawn("nginx", ["-p", directory, "-c", file], { stdio: "ignore" });
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
