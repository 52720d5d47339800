/** Of what the hub writes to a person by mail or chat, and which of it they want to hear. */
import type { Mutes } from '../api/types'

/** The rules that tell somebody in person, in words. */
const KINDS: Record<string, string> = {
  gpu_held_idle: 'a GPU that you hold and do not use',
  xid: 'a fault of a program of yours',
  booking_conflict: 'somebody on what you booked, or you on what others did',
  booking_no_show: 'a booking of yours that nobody uses',
  booking_overrun: 'a booking of yours that is over while you are still there',
  watch: 'GPUs that you asked to be told of',
}

export interface MuteLine {
  rule: string
  text: string
  isTold: boolean
  /** The hub's settings mute it: it is not theirs to change. */
  isFixed: boolean
}

/** What is muted by a name that is not known here is shown by that name. */
export function muteLines({ rules, by_settings }: Mutes): MuteLine[] {
  const names = new Set([...Object.keys(KINDS), ...rules, ...by_settings])
  return [...names].map((rule) => {
    const isFixed = by_settings.includes(rule)
    return { rule, text: KINDS[rule] ?? rule, isTold: !isFixed && !rules.includes(rule), isFixed }
  })
}

/** The choice once one kind is told, or is no more. */
export function withTold({ rules }: Mutes, rule: string, isTold: boolean): string[] {
  const others = rules.filter((each) => each !== rule)
  return isTold ? others : [...others, rule]
}
