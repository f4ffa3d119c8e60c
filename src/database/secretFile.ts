import { randomBytes } from "node:crypto";
import { existsSync } from "node:fs";
import { link, readFile, rm, writeFile } from "node:fs/promises";

/**
 * Reads a secret from a file of mode 0600, making it first if the file is missing. Twice at once: both
 * get the same secret. It is written aside and linked, so that the file is never there without it.
 */
export async function secretFileEnsure(path: string, make: () => string): Promise<string> {
  if (!existsSync(path)) {
    const draft = `${path}.${process.pid}-${randomBytes(4).toString("hex")}`;
    await writeFile(draft, `${make()}\n`, { mode: 0o600 });
    await link(draft, path).catch((error: NodeJS.ErrnoException) => {
      if (error.code !== "EEXIST") throw error;
    });
    await rm(draft, { force: true });
  }
  return (await readFile(path, "utf8")).trim();
}
