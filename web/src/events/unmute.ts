/** Ends a mute, and says so with the way back. */
import { createMute, endMute } from '../api/alerts'
import { muteAgain, muteText } from './alertGroups'
import { explain } from '../ui/apiErrors'
import { toasts } from '../ui/toasts.svelte'

/** `now` is the hub's clock; `onChange` is called when there are other mutes than before. */
export async function unmute(id: string, now: number, onChange: () => void): Promise<void> {
  const answer = await endMute(id)
  onChange()
  if ('refused' in answer) return toasts.fail(`Not unmuted. ${explain(answer.refused).text}`)
  const { what } = muteText(answer.done, now)
  toasts.show(`Unmuted: ${what}`, { run: () => createMute(muteAgain(answer.done)), done: `Muted again: ${what}`, after: onChange }, [`mute ${id}`])
}
