import { createRequire } from "node:module";
import { defineConfig } from "vitest/config";

export default defineConfig({
  // graphql ships two builds. Node loads this one for every dependency; the bundler's choice for our own
  // files would be the other, and an error of one is no GraphQLError of the other.
  resolve: { alias: [{ find: /^graphql$/, replacement: createRequire(import.meta.url).resolve("graphql") }] },
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: "test/support/globalSetup.ts",
    // One worker a core of the smallest machine the suite is meant for.
    maxWorkers: 2,
    // Far above what anything takes, for machines that do much else besides.
    testTimeout: 240_000,
    hookTimeout: 120_000,
  },
});
