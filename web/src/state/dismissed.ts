/** Sentences that somebody has read and put away. One that ended and comes back is shown again. */

const KEY = 'gpudeck.dismissed'

/** The part of the browser that is used; null where storage is forbidden. */
export type Store = Pick<Storage, 'getItem' | 'setItem'> | null

/** What is left of `problems`, as `put` away is. */
export function notDismissed(problems: readonly string[], put: readonly string[]): string[] {
  return problems.filter((problem) => !put.includes(problem))
}

/** What stays put away: nothing that is no problem any more. */
export function stillDismissed(put: readonly string[], problems: readonly string[]): string[] {
  return put.filter((text) => problems.includes(text))
}

export function readDismissed(store: Store): string[] {
  try {
    const read: unknown = JSON.parse(store?.getItem(KEY) ?? '[]')
    return Array.isArray(read) ? read.filter((text) => typeof text === 'string') : []
  } catch {
    return []
  }
}

export function keepDismissed(store: Store, put: readonly string[]): void {
  try {
    store?.setItem(KEY, JSON.stringify(put))
  } catch {
    // Storage may be full or forbidden: it then lasts as long as the page.
  }
}
