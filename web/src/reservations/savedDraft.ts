/** What somebody has filled in and not sent: it is there again once they have logged in anew. */
import type { Draft } from './draft'

let saved: { who: string; address: string; draft: Draft } | null = null

/** `address` is what the form was opened with. */
export function saveDraft(who: string, address: string, draft: Draft): void {
  saved = { who, address, draft }
}

/** Nobody sees what another filled in, nor finds it in another form. */
export function savedDraft(who: string, address: string): Draft | null {
  return saved?.who === who && saved.address === address ? saved.draft : null
}

export function forgetDraft(): void {
  saved = null
}
