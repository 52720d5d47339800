/** Which notifications a user gets by email or chat. */
import type { PersonalMutes } from '../api/types'

/** The rules that notify individual users. */
const KINDS: Record<string, string> = {
  gpu_idle: 'a GPU of yours that is idle',
  xid: 'a GPU error caused by one of your processes (XID)',
  reservation_conflict: 'a conflict between your reservation and another user',
  reservation_no_show: 'a reservation of yours that is not used',
  reservation_overrun: 'a reservation of yours that ended while you still use the GPUs',
  ask: 'questions of other users about your idle GPUs',
  digest: 'digests: your figures of the last week or month',
  watch: 'free GPUs you asked for with “Notify me”',
}

export interface NotificationChoice {
  rule: string
  text: string
  isOn: boolean
  /** Muted in the hub's settings: users cannot change it. */
  isFixed: boolean
}

/** What is muted by a name that is not known here is shown by that name. */
export function notificationChoices({ rules, by_settings }: PersonalMutes): NotificationChoice[] {
  const names = new Set([...Object.keys(KINDS), ...rules, ...by_settings])
  return [...names].map((rule) => {
    const isFixed = by_settings.includes(rule)
    return { rule, text: KINDS[rule] ?? rule, isOn: !isFixed && !rules.includes(rule), isFixed }
  })
}

/** The muted rules after switching one rule on or off. */
export function withNotification({ rules }: PersonalMutes, rule: string, isOn: boolean): string[] {
  const others = rules.filter((each) => each !== rule)
  return isOn ? others : [...others, rule]
}
