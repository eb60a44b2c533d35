"""Rewards: four types behind one scorer, computed in processes of their own."""

from drumroll_rollout.rewards.results import RewardCrash, ScoreResult
from drumroll_rollout.rewards.scorer import Scorer, build_scorer, check_reward

__all__ = ["RewardCrash", "ScoreResult", "Scorer", "build_scorer", "check_reward"]
