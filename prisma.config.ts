import { defineConfig } from "prisma/config";

// The CLI wants to download a schema engine that `generate` never runs; any existing file contents it,
// so that an install works without reaching anything but the package registry. Migrations are applied
// by the same engine in its WebAssembly form (src/database/migrate.ts).
process.env["PRISMA_SCHEMA_ENGINE_BINARY"] ??= process.execPath;

export default defineConfig({ schema: "schema.prisma", migrations: { path: "prisma/migrations" } });
