/** What somebody has filled in and not sent: it is there again once they have logged in anew. */
import type { Draft } from './draft'

let kept: { who: string; address: string; draft: Draft } | null = null

/** `address` is what the form was opened with. */
export function keepDraft(who: string, address: string, draft: Draft): void {
  kept = { who, address, draft }
}

/** Nobody sees what another filled in, nor finds it in another form. */
export function keptDraft(who: string, address: string): Draft | null {
  return kept?.who === who && kept.address === address ? kept.draft : null
}

export function forgetDraft(): void {
  kept = null
}
