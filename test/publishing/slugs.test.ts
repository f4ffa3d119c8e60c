import { expect, test } from "vitest";
import { appSlugRead, RESERVED_SLUGS } from "../../src/publishing/slugs.ts";

// H25: one canonical form, or a refusal; nothing is repaired but the case.

test.each([
  ["Shop", "shop"],
  ["A1", "a1"],
  ["my-app-2", "my-app-2"],
  ["a", "a"],
  ["7", "7"],
  ["mall", "mall"],
  ["born", "born"],
  ["shop-1", "shop-1"],
  ["s3-bucket", "s3-bucket"],
  ["x".repeat(63), "x".repeat(63)],
])("%s is %s", (given, slug) => {
  expect(appSlugRead(given)).toEqual({ slug });
});

test.each([
  "",
  " shop",
  "shop ",
  "-a",
  "a-",
  "-",
  "a..b",
  "a.b",
  "a_b",
  "x".repeat(64),
  "xn--80ak6aa92e",
  "XN--shop",
  "ｓｈｏｐ",
  "ѕhop",
  "İstanbul",
  "ıstanbul",
  "straße",
  "😀",
  "shop\u0000",
  "shop\u200b",
  "K\u212Aelvin",
])("%j is refused", (given) => {
  expect(appSlugRead(given)).toEqual({ problem: expect.any(String) });
});

test("every reserved name is refused, in any case, and with its letters in disguise", () => {
  for (const name of RESERVED_SLUGS) {
    // What ends in digits is taken as it is: "mx1" has no disguise but its case.
    const disguised = /\d$/.test(name) ? [] : [name.replace(/o(?=.*[a-z])/g, "0"), name.replace("m", "rn")];
    for (const given of [name, name.toUpperCase(), ...disguised]) {
      expect(appSlugRead(given), given).toHaveProperty("problem");
    }
  }
});

test.each([
  "adm1n",
  "rnail",
  "ap1",
  "emai1",
  "pane1",
  "l0gin",
  "bi11ing",
  "8illing",
  "log-in",
  "5upport",
  "suppor7",
  "vvww",
  "4dmin",
  "s3curity",
])("%s looks like a reserved name", (given) => {
  expect(appSlugRead(given)).toHaveProperty("problem");
});

test("the list has no double, and nothing that could not be a slug anyway", () => {
  expect(new Set(RESERVED_SLUGS).size).toBe(RESERVED_SLUGS.length);
  for (const name of RESERVED_SLUGS) expect(name).toMatch(/^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$/);
});
