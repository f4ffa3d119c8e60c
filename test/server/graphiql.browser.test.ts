import { existsSync } from "node:fs";
import { type Browser, chromium } from "playwright-core";
import { afterAll, beforeAll, expect, test } from "vitest";
import { startApi, type TestApi } from "../support/api.ts";
import { useTestDatabase } from "../support/database.ts";

// A browser of the system; none is downloaded.
const BROWSER = ["/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"].find((path) =>
  existsSync(path),
);

const database = useTestDatabase();
let api: TestApi;
let browser: Browser | undefined;

beforeAll(async () => {
  api = await startApi(database().url);
  if (BROWSER === undefined) return;
  browser = await chromium.launch({
    executablePath: BROWSER,
    args: [
      "--no-sandbox",
      "--disable-gpu",
      "--disable-background-networking",
      "--disable-component-update",
      "--disable-sync",
    ],
  });
});
afterAll(async () => {
  await browser?.close();
  await api.close();
});

test("GraphiQL opens from this server alone, with seven tabs that tell the story and no token in the page", async (context) => {
  if (browser === undefined) return context.skip("no Chromium is installed");
  const page = await browser.newPage();
  const elsewhere: string[] = [];
  page.on("request", (request) => {
    if (!request.url().startsWith(new URL(api.url).origin) && !/^(data|blob):/.test(request.url()))
      elsewhere.push(request.url());
  });
  await page.goto(api.url);
  const tabs = page.getByRole("tab");
  await tabs.nth(6).waitFor();
  expect(await tabs.count()).toBe(7);
  expect((await tabs.allInnerTexts()).map((text) => text.trim())).toEqual([
    "Inventory",
    "Preview",
    "Reserve",
    "Convert",
    "Refused",
    "Publish",
    "Follow",
  ]);
  expect(await page.content()).not.toContain(api.operator);
  expect(elsewhere).toEqual([]);
});
