const LABEL = /^[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?$/;

/** A slug in its canonical form, or what is wrong with it. */
export type SlugReading = { readonly slug: string } | { readonly problem: string };

/**
 * Reads a slug: one DNS label of a-z, 0-9 and inner hyphens, at most 63 bytes, not beginning with
 * `xn--`. Upper case is folded; nothing else is repaired, so that what looks alike is refused.
 */
export function slugRead(given: string): SlugReading {
  // ASCII only: the locale-aware fold turns İ into a letter with a combining dot.
  const slug = given.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
  if (slug.length > 63) return { problem: "It has more than 63 characters." };
  if (slug.startsWith("xn--"))
    return { problem: "It begins with xn--, which is kept for international names." };
  if (!LABEL.test(slug)) {
    return { problem: "Use a-z, 0-9 and hyphens, beginning and ending with a letter or a digit." };
  }
  return { slug };
}

/** Up to `count` variants of a taken slug, each still a valid label; whether they are free is not asked here. */
export function slugVariants(slug: string, count: number): string[] {
  return Array.from({ length: count }, (_, index) => {
    const ending = `-${index + 2}`;
    return slug.slice(0, 63 - ending.length).replace(/-+$/, "") + ending;
  });
}
