/** Short messages about what was just done, with the way to undo it: one list for the whole page. */
import { untrack } from 'svelte'
import type { Answer } from '../api/request'
import { explain } from './apiErrors'

export interface Undo {
  run: () => Promise<Answer<object>>
  /** What is said once it is undone. */
  done: string
  /** Called once it is undone, where something has to be read anew. */
  after?: () => void
}

export interface Toast {
  id: number
  /** What was changed, `reservation 12`: a later change of the same takes the way to undo this one away. */
  about: readonly string[]
  text: string
  undo: Undo | null
  /** It stays until somebody dismisses it. */
  isBad: boolean
}

/** With the way to undo it, and without. */
export const SHOWN_SECONDS = 10
const NOTICE_SECONDS = 5
const MOST = 3

export class ToastList {
  shown = $state.raw<readonly Toast[]>([])
  /** Where they can be drawn. The last one counts: what lies under an open dialog can neither be seen nor pressed. */
  private homes = $state.raw<readonly object[]>([])
  private readonly timers = new Map<number, ReturnType<typeof setTimeout>>()
  private isHeld = false
  private next = 1

  show(text: string, undo: Undo | null = null, about: readonly string[] = []): void {
    for (const toast of this.shown) if (toast.about.some((thing) => about.includes(thing))) this.dismiss(toast.id)
    this.add({ id: this.next++, about, text, undo, isBad: false })
  }

  fail(text: string): void {
    this.add({ id: this.next++, about: [], text, undo: null, isBad: true })
  }

  dismiss(id: number): void {
    clearTimeout(this.timers.get(id))
    this.timers.delete(id)
    this.shown = this.shown.filter((toast) => toast.id !== id)
    if (this.shown.length === 0) this.isHeld = false
  }

  async undo({ id, undo }: Toast): Promise<void> {
    if (undo === null || !this.shown.some((toast) => toast.id === id)) return
    this.dismiss(id)
    const answer = await undo.run()
    if ('refused' in answer) return this.fail(`Not undone. ${explain(answer.refused).text}`)
    this.show(undo.done)
    undo.after?.()
  }

  /** The newest that can be. False: there is none. */
  undoLast(): boolean {
    const last = this.shown.findLast(({ undo }) => undo !== null)
    if (last !== undefined) void this.undo(last)
    return last !== undefined
  }

  /** Nobody loses what they are reading, or are about to press. */
  hold(): void {
    this.isHeld = true
    for (const timer of this.timers.values()) clearTimeout(timer)
    this.timers.clear()
  }

  release(): void {
    this.isHeld = false
    for (const toast of this.shown) this.time(toast)
  }

  isHome(home: object): boolean {
    return this.homes.at(-1) === home
  }

  /** Returns how to leave. */
  enter(home: object): () => void {
    this.homes = [...untrack(() => this.homes), home]
    return () => (this.homes = untrack(() => this.homes).filter((each) => each !== home))
  }

  private add(toast: Toast): void {
    const [...all] = [...this.shown, toast]
    for (const { id } of all.slice(0, -MOST)) this.dismiss(id)
    this.shown = all.slice(-MOST)
    if (!this.isHeld) this.time(toast)
  }

  private time({ id, isBad, undo }: Toast): void {
    if (isBad || this.timers.has(id)) return
    this.timers.set(id, setTimeout(() => this.dismiss(id), (undo === null ? NOTICE_SECONDS : SHOWN_SECONDS) * 1000))
  }
}

export const toasts = new ToastList()
