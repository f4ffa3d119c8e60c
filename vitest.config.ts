import { createRequire } from "node:module";
import { defineConfig } from "vitest/config";
import { BaseSequencer, type TestSpecification } from "vitest/node";

/** The file that waits for minutes, and does little else, begins first: the others run meanwhile. */
class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const waits = (file: TestSpecification) => file.moduleId.endsWith("/publishing/processes.race.test.ts");
    const sorted = await super.sort(files);
    return [...sorted.filter(waits), ...sorted.filter((file) => !waits(file))];
  }
}

export default defineConfig({
  // graphql ships two builds. Node loads this one for every dependency; the bundler's choice for our own
  // files would be the other, and an error of one is no GraphQLError of the other.
  resolve: { alias: [{ find: /^graphql$/, replacement: createRequire(import.meta.url).resolve("graphql") }] },
  test: {
    include: ["test/**/*.test.ts"],
    globalSetup: "test/support/globalSetup.ts",
    // Two workers a core of the smallest machine the suite is meant for: much of it is waiting for time-outs.
    maxWorkers: 4,
    sequence: { sequencer: LongestFirst },
    // Far above what anything takes, for machines that do much else besides.
    testTimeout: 240_000,
    hookTimeout: 120_000,
  },
});
